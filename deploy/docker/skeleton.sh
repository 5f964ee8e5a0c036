#!/bin/sh
# Part of the Dockerfile, in a folder with the sources: leaves the manifests, and empty programs and libraries in the places
# where cargo looks for ours. What is built of that is the dependencies; it is the same until a manifest changes.
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
