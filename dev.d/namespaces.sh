# Part of ./dev: checks that virtual networks (user and network namespaces) can be made.
# shellcheck shell=sh disable=SC2154 # sysroot, say, fail: from ../dev and needs.sh

# setting NAME: the value of a kernel setting, with / between its parts; nothing where the kernel does not have it.
setting() {
	{ read -r value <"$sysroot/proc/sys/$1"; } 2>/dev/null || value=''
	printf '%s\n' "$value"
}

# namespaces_work: returns if they do; else names the remedy in one line and ends with code 2.
namespaces_work() {
	if [ "$(id -u)" = 0 ]; then
		unshare -nm ip link set lo up >/dev/null 2>&1 ||
			no_namespaces 'root lacks CAP_SYS_ADMIN or CAP_NET_ADMIN, as in a container: start the container with --privileged, or run ./dev outside of it'
	elif ! unshare -Urnm ip link set lo up >/dev/null 2>&1; then
		if [ "$(setting kernel/apparmor_restrict_unprivileged_userns)" = 1 ]; then
			no_namespaces 'AppArmor keeps user namespaces from ordinary users; allow them: sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0'
		elif [ "$(setting kernel/unprivileged_userns_clone)" = 0 ]; then
			no_namespaces 'the kernel keeps user namespaces from ordinary users; allow them: sudo sysctl -w kernel.unprivileged_userns_clone=1'
		elif [ "$(setting user/max_user_namespaces)" = 0 ]; then
			no_namespaces 'the kernel allows no user namespaces at all; allow some: sudo sysctl -w user.max_user_namespaces=10000'
		else
			no_namespaces 'user namespaces are refused, as in a container: start the container with --privileged, or run ./dev as root or outside of it'
		fi
	fi
}

no_namespaces() {
	fail 2 "virtual networks cannot be made here: $1"
}
