# Part of ./dev: what machines without containers take: programs, units for systemd, examples of settings.
# shellcheck shell=sh disable=SC2154 # root, target, programs, services, say, step, fail, needs, version: from ../dev and images.sh

# tarball [DIR]: makes target/tarball/flexfeed-VERSION-ARCH-linux.tar.gz and its checksum; of the programs in DIR, or of those
# that it builds. They need the C library of the machine that they were built on or a newer one, and GCC's libraries for C++.
tarball() {
	built=${1:-}
	if [ -z "$built" ]; then
		needs build web
		build_web
		step 'Building the programs, optimised'
		first_build release 8
		# shellcheck disable=SC2086 # a list
		cargo build --release --locked $services
		built=$target/release
	fi
	for program in $programs; do
		[ -x "$built/$program" ] || fail 2 "there is no $program in $built"
	done
	name=flexfeed-$(version)-$(uname -m)-linux
	step "Packing $name"
	tree=$target/tarball/$name
	rm -rf "$tree"
	mkdir -p "$tree/bin" "$tree/lib/systemd/system" "$tree/lib/sysusers.d" "$tree/lib/tmpfiles.d" "$tree/etc/flexfeed" "$tree/share/doc/flexfeed"
	for program in $programs; do
		strip --strip-all -o "$tree/bin/$program" "$built/$program" || fail 1 "$built/$program is no program"
	done
	cp "$root"/deploy/systemd/*.service "$tree/lib/systemd/system/"
	cp "$root"/deploy/systemd/config/*.toml "$tree/etc/flexfeed/"
	cp "$root/deploy/systemd/flexfeed.sysusers.conf" "$tree/lib/sysusers.d/flexfeed.conf"
	cp "$root/deploy/systemd/flexfeed.tmpfiles.conf" "$tree/lib/tmpfiles.d/flexfeed.conf"
	cp "$root/deploy/systemd/flexfeed-relay.service.d/capture.conf" "$tree/share/doc/flexfeed/flexfeed-relay-capture.conf"
	cp "$root"/LICENSE-* "$root"/README.md "$tree/"
	cp "$root"/docs/*.md "$tree/share/doc/flexfeed/"
	(cd "$tree" && find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum) >"$tree.sums"
	mv "$tree.sums" "$tree/SHA256SUMS"
	# The same content makes the same file: no times, no names of whoever packed it.
	tar -C "$target/tarball" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@${SOURCE_DATE_EPOCH:-0}" -cf - "$name" | gzip -9n >"$tree.tar.gz"
	rm -rf "$tree"
	(cd "$target/tarball" && sha256sum "$name.tar.gz" >"$name.tar.gz.sha256")
	say "$tree.tar.gz  $(wc -c <"$tree.tar.gz" | awk '{ printf "%.1f MB", $1 / 1e6 }')"
}

# test_tarball [FILE]: unpacks it and tries it, in a system that has nothing but the C library, if it needs that.
test_tarball() {
	file=${1:-$target/tarball/flexfeed-$(version)-$(uname -m)-linux.tar.gz}
	[ -f "$file" ] || fail 2 "there is no $file: ./dev tarball makes it"
	step "Testing $file"
	(cd "$root/testbed/packaging" && FLEXFEED_TARBALL="$(readlink -f "$file")" PYTHONDONTWRITEBYTECODE=1 python3 -m unittest -v test_tarball)
}

# test_units: the units for systemd and the examples of settings, with the programs that are built.
test_units() {
	step 'Testing units for systemd and examples of settings'
	(cd "$root/testbed/packaging" && FLEXFEED_BIN_DIR="$target/debug" PYTHONDONTWRITEBYTECODE=1 python3 -m unittest test_units)
}
