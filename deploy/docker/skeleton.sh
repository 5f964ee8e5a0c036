#!/bin/sh
# Part of the Dockerfile, run in a folder with the sources: keeps the manifests, and replaces our
# programs and libraries by empty ones. Building the result builds the dependencies only, and stays
# the same until a manifest changes.
set -eu

find . -type f ! -name Cargo.toml ! -name Cargo.lock ! -name '*.rs' -delete
find . -type f -name '*.rs' | while read -r file; do
	case $file in
	*/src/lib.rs) : >"$file" ;;
	*/src/main.rs | */src/bin/*.rs | */build.rs | */fuzz/targets/*.rs) echo 'fn main() {}' >"$file" ;;
	*) rm "$file" ;;
	esac
done
find . -type d -empty -delete
