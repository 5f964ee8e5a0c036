#!/bin/sh
# Part of the Dockerfile: puts together in /roots/NAME what the image of /programs/flexfeed-NAME holds, and makes the empty
# folder /data. Nothing is left out that the program needs: it is started in there, alone, before this ends.
set -eu

name=$1
program=/programs/flexfeed-$name
root=/roots/$name
mkdir -p "$root/usr/bin" "$root/etc/ssl/certs" "$root/usr/share/doc/flexfeed" "$root/var/lib/dpkg/status.d" /data

# with_package FILE: its licence, and the entry by which scanners know its version, where the base has them.
with_package() {
	# Where /lib is a link to /usr/lib, packages know their files by either.
	package=$(dpkg-query -S "$1" 2>/dev/null | sed -n '1s/:.*//p')
	[ -n "$package" ] || package=$(dpkg-query -S "${1#/usr}" 2>/dev/null | sed -n '1s/:.*//p')
	[ -n "$package" ] || return 0
	dpkg-query -s "$package" >"$root/var/lib/dpkg/status.d/$package"
	[ ! -e "/usr/share/doc/$package/copyright" ] || {
		mkdir -p "$root/usr/share/doc/$package"
		cp "/usr/share/doc/$package/copyright" "$root/usr/share/doc/$package/"
	}
}

# Fault injection is for tests: xtask looks for more names of it where the sources are.
! grep -qF FLEXFEED_FAULTS "$program" || {
	echo "$program injects faults: programs with the feature 'fault-injection' are for tests only" >&2
	exit 1
}

install -m 0755 "$program" "$root/usr/bin/flexfeed-$name"
# Each library by the path that the loader looks for it at, without links: the loader itself is the last.
ldd "$program" | sed -n 's/^[^/]*\(\/[^ ]*\) (0x.*/\1/p' | while read -r library; do
	mkdir -p "$root${library%/*}"
	cp -L "$library" "$root$library"
	with_package "$(readlink -f "$library")"
done

# The name service of the C library: its parts for files and the DNS are in the library itself since glibc 2.34.
printf 'passwd: files\ngroup: files\nhosts: files dns\n' >"$root/etc/nsswitch.conf"
printf 'root:x:0:0:root:/:/sbin/nologin\nflexfeed:x:65532:65532:flexfeed:/data:/sbin/nologin\n' >"$root/etc/passwd"
printf 'root:x:0:\nflexfeed:x:65532:\n' >"$root/etc/group"
cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
with_package /usr/sbin/update-ca-certificates
cp /licenses/* "$root/usr/share/doc/flexfeed/"

chroot "$root" "/usr/bin/flexfeed-$name" --version
