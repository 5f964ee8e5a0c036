#!/bin/sh
# Part of the Dockerfile: collects the contents of the image of /programs/flexfeed-NAME in
# /roots/NAME, and creates the empty folder /data. At the end it starts the program in that root,
# which proves that nothing is missing.
set -eu

name=$1
program=/programs/flexfeed-$name
root=/roots/$name
mkdir -p "$root/usr/bin" "$root/etc/ssl/certs" "$root/usr/share/doc/flexfeed" "$root/var/lib/dpkg/status.d" /data

# with_package FILE: copies the licence of FILE's package, and the entry from which scanners know
# its version, if the base has them.
with_package() {
	# If /lib is a link to /usr/lib, packages may list either path.
	package=$(dpkg-query -S "$1" 2>/dev/null | sed -n '1s/:.*//p')
	[ -n "$package" ] || package=$(dpkg-query -S "${1#/usr}" 2>/dev/null | sed -n '1s/:.*//p')
	[ -n "$package" ] || return 0
	dpkg-query -s "$package" >"$root/var/lib/dpkg/status.d/$package"
	[ ! -e "/usr/share/doc/$package/copyright" ] || {
		mkdir -p "$root/usr/share/doc/$package"
		cp "/usr/share/doc/$package/copyright" "$root/usr/share/doc/$package/"
	}
}

# Fault injection is for tests only; xtask checks more names of it where the sources are.
! grep -qF FLEXFEED_FAULTS "$program" || {
	echo "$program injects faults: programs with the feature 'fault-injection' are for tests only" >&2
	exit 1
}

install -m 0755 "$program" "$root/usr/bin/flexfeed-$name"
# Each library at the path where the loader looks for it, without links; the loader itself is the
# last.
ldd "$program" | sed -n 's/^[^/]*\(\/[^ ]*\) (0x.*/\1/p' | while read -r library; do
	mkdir -p "$root${library%/*}"
	cp -L "$library" "$root$library"
	with_package "$(readlink -f "$library")"
done

# Name service of the C library: since glibc 2.34 the library itself contains files and DNS.
printf 'passwd: files\ngroup: files\nhosts: files dns\n' >"$root/etc/nsswitch.conf"
printf 'root:x:0:0:root:/:/sbin/nologin\nflexfeed:x:65532:65532:flexfeed:/data:/sbin/nologin\n' >"$root/etc/passwd"
printf 'root:x:0:\nflexfeed:x:65532:\n' >"$root/etc/group"
cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
with_package /usr/sbin/update-ca-certificates
cp /licenses/* "$root/usr/share/doc/flexfeed/"

chroot "$root" "/usr/bin/flexfeed-$name" --version
