# Part of ./dev: fuzzes the console's API from its own description.
# shellcheck shell=sh disable=SC2154 # root, target: from ../dev

# So many requests for each call, within ./dev test.
api_examples=4

# find_schemathesis: sets `schemathesis` to the release of schemathesis.txt, getting it into the target folder if need be.
find_schemathesis() {
	place=$target/tools/schemathesis
	schemathesis=$place/bin/schemathesis
	wanted=$root/dev.d/schemathesis.txt
	[ "$(cat "$wanted")" != "$(cat "$place/installed.txt" 2>/dev/null)" ] || return 0
	have python3 && have curl || return 1
	step "Getting schemathesis, which fuzzes the API, into $place"
	rm -rf "$place"
	python3 -m venv "$place" &&
		thrice "$place/bin/pip" install --quiet --disable-pip-version-check --no-deps -r "$wanted" &&
		cp "$wanted" "$place/installed.txt"
}

# fuzz_api [EXAMPLES]: asks the built console whatever its description allows, and what it does not.
fuzz_api() {
	if ! find_schemathesis; then
		[ -z "${FLEXFEED_REQUIRE_PEERS:-}" ] ||
			fail 1 'schemathesis is missing: it needs curl, python3 with venv (Debian: curl python3-venv), and a package index to come from'
		say ''
		say '!!! SKIPPED: the API was NOT fuzzed. That needs curl, python3 with venv (Debian: curl python3-venv), and a package'
		say '!!! index from which schemathesis comes (see above). Everything else goes on.'
		return 0
	fi
	step "Fuzzing the console's API from its own description"
	# The same requests each time, so that a change is what makes it fail.
	FUZZ_SEED=${FUZZ_SEED:-1} sh "$root/services/console/fuzz-api.sh" "$target/debug/flexfeed-console" "$schemathesis" \
		"${1:-$api_examples}"
}
