# Part of ./dev: checks that virtual networks can be made (user and network namespaces, bridges,
# packet filters). Shell, because it runs before the long first build, which would be useless
# without them.
# shellcheck shell=sh disable=SC2154 # sysroot, fail: from needs.sh and ../dev

# The parts of a virtual network that the kernel may have as modules.
network_parts='ip link add probe0 type bridge &&
	ip link add probe1 type veth peer name probe2 &&
	nft "table bridge probe { chain forward { type filter hook forward priority 0; policy accept; }; }"'

# setting NAME: prints a kernel setting, with / between the parts of its name; nothing if the kernel
# does not have it.
setting() {
	{ read -r value <"$sysroot/proc/sys/$1"; } 2>/dev/null || value=''
	printf '%s\n' "$value"
}

# inside COMMAND...: runs it in a network namespace, made with root's rights or in a user namespace.
inside() {
	if [ "$(id -u)" = 0 ] && unshare --net --pid --fork ip link set lo up >/dev/null 2>&1; then
		unshare --net --pid --fork "$@" >/dev/null 2>&1
	else
		unshare --user --map-root-user --net --pid --fork "$@" >/dev/null 2>&1
	fi
}

# namespaces_work: returns if they do; otherwise prints the remedy in one line and ends with code 2.
namespaces_work() {
	if inside ip link set lo up; then
		inside sh -c "$network_parts" ||
			no_namespaces 'the kernel gives no bridges, virtual cables or nftables; on the machine itself (not in a container): sudo modprobe -a bridge veth nf_tables'
	elif [ "$(id -u)" = 0 ]; then
		no_namespaces 'root lacks CAP_SYS_ADMIN or CAP_NET_ADMIN, as in a container: start the container with --privileged, or run ./dev outside of it'
	elif [ "$(setting kernel/apparmor_restrict_unprivileged_userns)" = 1 ]; then
		no_namespaces 'AppArmor keeps user namespaces from ordinary users; allow them: sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0'
	elif [ "$(setting kernel/unprivileged_userns_clone)" = 0 ]; then
		no_namespaces 'the kernel keeps user namespaces from ordinary users; allow them: sudo sysctl -w kernel.unprivileged_userns_clone=1'
	elif [ "$(setting user/max_user_namespaces)" = 0 ]; then
		no_namespaces 'the kernel allows no user namespaces at all; allow some: sudo sysctl -w user.max_user_namespaces=10000'
	else
		no_namespaces 'user namespaces are refused, as in a container: start the container with --privileged, or run ./dev as root or outside of it'
	fi
}

no_namespaces() {
	fail 2 "virtual networks cannot be made here: $1"
}
