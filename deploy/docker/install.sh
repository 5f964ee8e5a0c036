#!/bin/sh
# Part of the Dockerfile: installs what a stage needs and its base lacks, from the distribution or,
# for Rust, with rustup.
#   install.sh node | rust RUST_TOOLCHAIN_TOML | certificates
set -eu

have() {
	command -v "$1" >/dev/null 2>&1
}

# packages NAME...: installs from the distribution and removes the package lists.
packages() {
	apt-get -o Acquire::Retries=3 update
	DEBIAN_FRONTEND=noninteractive apt-get -o Acquire::Retries=3 install -y --no-install-recommends "$@"
	rm -rf /var/lib/apt/lists/*
}

case $1 in
node)
	have npm || packages ca-certificates nodejs npm
	;;
rust)
	packages ca-certificates clang cmake curl g++ git libclang-dev make pkg-config
	have cargo && exit
	version=$(sed -n 's/^channel *= *"\([0-9.]*\)".*/\1/p' "$2")
	for address in https://sh.rustup.rs https://static.rust-lang.org/rustup/rustup-init.sh; do
		curl --proto '=https' --tlsv1.2 -sSf --retry 3 -o /tmp/rustup.sh "$address" && break
	done
	sh /tmp/rustup.sh -y --no-modify-path --profile minimal --default-toolchain "${RUST_VERSION:-$version}"
	rm /tmp/rustup.sh
	;;
certificates)
	[ -e /etc/ssl/certs/ca-certificates.crt ] || packages ca-certificates
	;;
*)
	echo "install.sh: unknown: $1" >&2
	exit 2
	;;
esac
