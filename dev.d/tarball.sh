# Part of ./dev: what machines without containers take: programs, units for systemd, examples of settings.
# shellcheck shell=sh disable=SC2154 # root, target, programs, services, say, step, fail, needs, version: from ../dev and images.sh

# tarball [DIR]: makes target/tarball/flexfeed-VERSION-ARCH-linux-KIND.tar.gz and its checksum: of static programs, which it
# builds, or of those in DIR, as they are. KIND is `static`, or `gnu` for those that need the system's C library.
tarball() {
	built=${1:-}
	if [ -z "$built" ]; then
		needs build web
		links_statically || fail 2 'this machine cannot link C++ statically: the parts of the libraries for it are missing (Debian has them in libc6-dev and libstdc++-*-dev, Fedora in glibc-static and libstdc++-static)'
		build_web
		build_static
	fi
	for program in $programs; do
		[ -x "$built/$program" ] || fail 2 "there is no $program in $built"
	done
	no_faults "$built"
	kind=$(kind_of "$built")
	name=flexfeed-$(version)-$(uname -m)-linux-$kind
	step "Packing $name"
	tree=$target/tarball/$name
	documents=$tree/share/doc/flexfeed
	rm -rf "$tree"
	mkdir -p "$tree/bin" "$tree/lib/systemd/system" "$tree/lib/sysusers.d" "$tree/lib/tmpfiles.d" "$tree/etc/flexfeed" "$documents"
	for program in $programs; do
		strip --strip-all -o "$tree/bin/$program" "$built/$program" || fail 1 "$built/$program is no program"
	done
	cp "$root"/deploy/systemd/*.service "$tree/lib/systemd/system/"
	cp "$root"/deploy/systemd/config/* "$tree/etc/flexfeed/"
	cp "$root/deploy/systemd/flexfeed.sysusers.conf" "$tree/lib/sysusers.d/flexfeed.conf"
	cp "$root/deploy/systemd/flexfeed.tmpfiles.conf" "$tree/lib/tmpfiles.d/flexfeed.conf"
	cp "$root"/LICENSE-* "$tree/"
	pack_documents
	(cd "$tree" && find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum) >"$tree.sums"
	mv "$tree.sums" "$tree/SHA256SUMS"
	# The same content makes the same file: no times, no names of whoever packed it.
	tar -C "$target/tarball" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@${SOURCE_DATE_EPOCH:-0}" -cf - "$name" | gzip -9n >"$tree.tar.gz"
	rm -rf "$tree"
	(cd "$target/tarball" && sha256sum "$name.tar.gz" >"$name.tar.gz.sha256" && ln -sf "$name.tar.gz" newest.tar.gz)
	say "$tree.tar.gz  $(wc -c <"$tree.tar.gz" | awk '{ printf "%.1f MB", $1 / 1e6 }')"
}

# links_statically: whether a C++ program can have all of its libraries inside.
links_statically() {
	place=$(mktemp -d)
	linked=0
	printf '#include <string>\nint main(int n, char **v) { return std::string(v[0]).empty(); }\n' |
		c++ -static -x c++ -o "$place/program" - 2>/dev/null || linked=1
	rm -rf "$place"
	return "$linked"
}

# build_static: sets `built` to a folder with static programs, which it makes in a target folder of its own, so that other
# builds stay warm. Static means glibc's own parts for files and the DNS: deploy/tarball/names.c says why no others.
build_static() {
	step 'Building the programs, optimised and static'
	triple=$(rustc -vV | sed -n 's/^host: //p')
	case $triple in
	*-linux-gnu*) ;;
	*) fail 2 "static programs are built on Linux with glibc; this compiler is for $triple" ;;
	esac
	first_build "static/$triple/release" '20 to 25'
	mkdir -p "$target/static"
	# A change of it is another name, and so another flag: cargo does not look into what the linker is given.
	names=$target/static/names-$(cksum <"$root/deploy/tarball/names.c" | tr ' ' '-').o
	cc -O2 -fPIC -c -o "$names" "$root/deploy/tarball/names.c" || fail 1 'deploy/tarball/names.c cannot be compiled; the reason is above'
	# Between these flags are no blanks, which a path may have. With --target they are for the programs alone, not for what runs
	# while they are built.
	CARGO_ENCODED_RUSTFLAGS=$(printf -- '-Ctarget-feature=+crt-static\037-Clink-arg=%s' "$names")
	export CARGO_ENCODED_RUSTFLAGS
	# shellcheck disable=SC2086 # a list
	cargo build --release --locked --target "$triple" --target-dir "$target/static" $services
	unset CARGO_ENCODED_RUSTFLAGS
	built=$target/static/$triple/release
	[ "$(kind_of "$built")" = static ] || fail 1 "the programs in $built should be static and are not"
}

# kind_of DIR: `static` if no program there asks for a loader of libraries, else `gnu`.
kind_of() {
	for program in $programs; do
		if readelf -lW "$1/$program" | grep -q INTERP; then
			echo gnu
			return
		fi
	done
	echo static
}

# pack_documents: the documents, each where links from others find it, and a page that says what this is.
pack_documents() {
	mkdir -p "$documents/helm" "$documents/testbed" "$documents/deploy"
	cp "$root"/README.md "$root"/ARCHITECTURE.md "$root"/SECURITY.md "$root"/CHANGELOG.md "$documents/"
	cp "$root/testbed/README.md" "$documents/testbed/"
	cp -R "$root/docs" "$documents/"
	cp -R "$root/helm/flexfeed" "$documents/helm/"
	cp -R "$root/deploy/prometheus" "$root/deploy/grafana" "$root/deploy/systemd" "$documents/deploy/"
	find "$documents" -name __pycache__ -prune -exec rm -rf {} +
	cp "$root/deploy/tarball/README.md" "$tree/README.md"
	if [ "$kind" = static ]; then
		# shellcheck disable=SC2016 # Markdown
		echo 'The programs are static: they need no library of the system, and look names up in `/etc/hosts` and by the DNS alone.' >>"$tree/README.md"
		# What of the system of the build is inside.
		for licence in /usr/share/doc/libc6/copyright /usr/share/doc/gcc-*-base/copyright; do
			[ ! -e "$licence" ] || cp "$licence" "$documents/LICENSE-$(basename "$(dirname "$licence")")"
		done
	else
		# shellcheck disable=SC2016 # Markdown
		echo 'The programs need the libraries `libc.so.6` (glibc, as old as that of the machine that they were built on, or newer), `libstdc++.so.6` and `libgcc_s.so.1`.' >>"$tree/README.md"
	fi
}

# test_tarball [FILE]: unpacks it and tries it, in a system that has nothing but what it says that it needs.
test_tarball() {
	file=${1:-$target/tarball/newest.tar.gz}
	[ -f "$file" ] || fail 2 "there is no $file: ./dev tarball makes it"
	step "Testing $(readlink -f "$file")"
	(cd "$root/testbed/packaging" && FLEXFEED_TARBALL="$(readlink -f "$file")" PYTHONDONTWRITEBYTECODE=1 python3 -m unittest -v test_tarball)
}

# test_units: the units for systemd and the examples of settings, with the programs that are built; that all is of one version; and
# that the images can be built of their context.
test_units() {
	step 'Testing units for systemd and examples of settings'
	(cd "$root/testbed/packaging" && FLEXFEED_BIN_DIR="$target/debug" PYTHONDONTWRITEBYTECODE=1 python3 -m unittest test_units test_versions test_context)
}
