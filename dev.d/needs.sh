# Part of ./dev: finds what this machine lacks. Shell, because Rust may be what is missing.
# shellcheck shell=sh disable=SC2034,SC2154 # sets what install.sh reads; root, fail: from ../dev

# The tests of ./dev put a made-up system here; empty means the real one.
sysroot=${FLEXFEED_DEV_SYSROOT:-}

# Not on the PATH of Debian's ordinary users, but ip, nft and ldconfig may be there.
PATH=$PATH:$sysroot/usr/sbin:$sysroot/sbin

# The oldest Rust that works, from Cargo.toml, and the one that CI uses, which is installed where
# there is none: everybody then has the same compiler and the same lints.
rust_needed=$(sed -n 's/^rust-version *= *"\([0-9.]*\)".*/\1/p' "$root/Cargo.toml")
rust_pinned=$(sed -n 's/^channel *= *"\([0-9.]*\)".*/\1/p' "$root/rust-toolchain.toml")

cargo_home=${CARGO_HOME:-${HOME:-/nonexistent}/.cargo}

# have PROGRAM: whether it is on the PATH.
have() {
	command -v "$1" >/dev/null 2>&1
}

# lack WHAT PACKAGE...: notes a thing that is missing and the Debian packages that bring it.
lack() {
	missing="$missing
  - $1"
	shift
	for package in "$@"; do
		case " $packages " in
		*" $package "*) ;;
		*) packages="$packages $package" ;;
		esac
	done
}

# compiles COMPILER LANGUAGE HEADER: whether it makes a program, which takes headers and a linker.
compiles() {
	have "$1" || return 1
	scratch=$(mktemp -d)
	made=1
	printf '#include <%s>\nint main(void) { return 0; }\n' "$3" >"$scratch/probe"
	"$1" -x "$2" -o "$scratch/out" "$scratch/probe" >/dev/null 2>&1 && made=0
	rm -rf "$scratch"
	return "$made"
}

# has_libclang: whether bindgen will find libclang's C interface (libclang-cpp is another library).
has_libclang() {
	llvm=$(llvm-config --libdir 2>/dev/null) || llvm=''
	for place in "${LIBCLANG_PATH:-}" "$llvm" "$sysroot"/usr/lib/llvm-*/lib "$sysroot"/usr/lib/*-linux-gnu \
		"$sysroot/usr/lib64" "$sysroot/usr/lib" "$sysroot/usr/local/lib"; do
		[ -n "$place" ] || continue
		for library in "$place"/libclang.so* "$place"/libclang-[0-9]*.so*; do
			[ ! -e "$library" ] || return 0
		done
	done
	ldconfig -p 2>/dev/null | grep -q 'libclang[-.0-9]*\.so'
}

# has_reader: whether there is an independent Atom reader to compare with: feedparser, or newsboat
# and a Python that can open its cache. The python3 on the PATH often does not see the system's
# packages.
has_reader() {
	for python in python3 "$sysroot/usr/bin/python3"; do
		have "$python" || continue
		"$python" -c 'import feedparser' >/dev/null 2>&1 && return 0
		have newsboat && "$python" -c 'import sqlite3' >/dev/null 2>&1 && return 0
	done
	return 1
}

# has_decoder: sets `decoder` to a python3 with the package cryptography, which decodes flows.
has_decoder() {
	for decoder in python3 "$sysroot/usr/bin/python3"; do
		have "$decoder" || continue
		"$decoder" -c 'import cryptography' >/dev/null 2>&1 && return 0
	done
	return 1
}

# has_database: whether PostgreSQL's programs are there. Debian keeps them off the PATH.
has_database() {
	have initdb && have postgres && return 0
	for place in "$sysroot"/usr/lib/postgresql/*/bin; do
		[ ! -x "$place/initdb" ] || return 0
	done
	return 1
}

# at_least VERSION NEEDED: whether a.b.c is NEEDED or newer; an empty version is not.
at_least() {
	[ -n "$1" ] || return 1
	have_rest=${1%%[!0-9.]*}.
	need_rest=$2.
	while [ "${need_rest%.}" != "$need_rest" ] && [ -n "$need_rest" ]; do
		have_part=${have_rest%%.*}
		need_part=${need_rest%%.*}
		[ "${have_part:-0}" -le "$need_part" ] || return 0
		[ "${have_part:-0}" -ge "$need_part" ] || return 1
		have_rest=${have_rest#*.}
		need_rest=${need_rest#*.}
	done
}

# version_of COMMAND...: prints the second word of its output, such as 1.95.0; nothing if it fails.
# rustup would install the toolchain of rust-toolchain.toml unasked: ./dev asks first, and accepts
# another one that is new enough.
version_of() {
	RUSTUP_AUTO_INSTALL=0 "$@" 2>/dev/null | sed -n '1s/^[^ ]* \([^ ]*\).*/\1/p'
}

# find_rust: sets `rust` to ok, old or missing, and `rust_version`. Looks on the PATH, then in
# rustup's folder, then for another toolchain of rustup's; changes nothing outside this process.
find_rust() {
	rust=missing
	rust_version=''
	rust_here && return
	if [ -x "$cargo_home/bin/rustc" ] || [ -x "$cargo_home/bin/rustup" ]; then
		PATH=$cargo_home/bin:$PATH
		rust_here && return
	fi
	have rustup || return 0
	for toolchain in "$rust_pinned" "$rust_needed" stable; do
		if at_least "$(version_of rustup run "$toolchain" rustc --version)" "$rust_needed"; then
			export RUSTUP_TOOLCHAIN="$toolchain"
			rust_here && return
		fi
	done
}

# rust_here: whether the cargo and rustc on the PATH are new enough.
rust_here() {
	have cargo && have rustc || return 1
	rust_version=$(version_of rustc --version)
	[ -n "$rust_version" ] || return 1
	rust=old
	at_least "$rust_version" "$rust_needed" || return 1
	rust=ok
}

# look_for KIND...: fills `missing` (text), `packages` (Debian's names), `rust` and `components`.
look_for() {
	# Commands without Rust do not look for it.
	rust=ok
	missing=''
	packages=''
	components=''
	for kind in "$@"; do
		"look_for_$kind"
	done
}

look_for_build() {
	have git || lack 'git' git
	compiles cc c stdio.h || lack 'a C compiler (cc)' gcc libc6-dev
	compiles c++ c++ cstdio || lack 'a C++ compiler (c++)' g++
	have make || [ -n "${CMAKE_GENERATOR:-}" ] || lack 'make' make
	have cmake || lack 'cmake' cmake
	have clang || lack 'clang' clang
	has_libclang || lack 'libclang (bindgen reads C headers with it)' libclang-dev
	look_for_toolchain
}

# look_for_rust: looks for what xtask needs.
look_for_rust() {
	compiles cc c stdio.h || lack 'a C compiler (cc)' gcc libc6-dev
	look_for_toolchain
}

look_for_toolchain() {
	find_rust
	case $rust in
	missing) lack "Rust $rust_needed or newer (from rustup)" ;;
	old) lack "Rust $rust_needed or newer (from rustup; Rust $rust_version is here)" ;;
	esac
	if [ "$rust" != ok ] && ! have rustup; then
		have curl || lack 'curl (fetches rustup)' curl
		[ -e "$sysroot/etc/ssl/certs/ca-certificates.crt" ] || ! have apt-get ||
			lack 'certificates of web sites (curl checks rustup'\''s)' ca-certificates
	fi
}

look_for_network() {
	[ "$(uname -s)" = Linux ] || fail 2 "virtual networks need Linux; this is $(uname -s). A virtual machine with Debian or Ubuntu will do."
	have ip || lack 'ip' iproute2
	have nft || lack 'nft' nftables
	for program in unshare nsenter setpriv; do
		have "$program" || lack "$program" util-linux
	done
}

look_for_reader() {
	has_reader || lack 'an independent reader of Atom files (Python'\''s feedparser; newsboat would do)' python3-feedparser
}

look_for_decoder() {
	has_decoder || lack 'cryptography for Python (docs/decode_flow.py decodes a flow with it)' python3-cryptography
}

look_for_database() {
	has_database || lack 'PostgreSQL (the tests start a server of their own and throw it away)' postgresql
}

look_for_lint() {
	have shellcheck || lack 'shellcheck' shellcheck
	[ "$rust" = ok ] || return 0
	if ! cargo fmt --version >/dev/null 2>&1 || ! cargo clippy --version >/dev/null 2>&1; then
		components=1
		lack 'rustfmt and clippy (parts of Rust, from rustup)'
	fi
}
