# Part of ./dev: builds beside what needs no programs, and gives tests that fail a second try.
# shellcheck shell=sh disable=SC2154 # target, say, step, fail, first_build: from ../dev

# So many tests may fail at their first try: more than that is no bad luck.
unstable_most=5

# begin_build: builds programs and tests while other steps go on, which come first; finish_build waits for it.
begin_build() {
	step "Building programs and tests, beside the next steps; what it says is kept in $target/build.log"
	first_build debug '15 to 20'
	mkdir -p "$target"
	# Together, so that programs and tests share what both are made of.
	nice -n 19 cargo build --locked --workspace --bins --tests >"$target/build.log" 2>&1 &
	building=$!
	# Whatever ends this ends that.
	trap 'kill "$building" 2>/dev/null || :; wait "$building" || :' EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM
}

finish_build() {
	step 'Building programs and tests'
	# What it said so far, and what it still says.
	tail -n +1 -f --pid="$building" "$target/build.log" >&2
	built=0
	wait "$building" || built=$?
	trap - EXIT INT TERM
	[ "$built" = 0 ] || exit "$built"
}

# failed_tests LOG: the names of the tests that failed, if it names all of them: not where a test program ended early, or where
# an example of the documentation failed.
failed_tests() {
	awk '
		/^failures:$/ { names = ""; listed = 0 }
		/^    [^ ]+$/ { names = names substr($0, 5) "\n"; listed++ }
		/^test result: FAILED/ {
			for (i = 2; i <= NF; i++) if ($i ~ /^failed/) failed += $(i - 1)
			programs++; all = all names; named += listed
		}
		/^error: [0-9]+ targets? failed:$/ { targets = $2 }
		END { if (programs && programs == targets && failed == named) printf "%s", all }
	' "$1"
}

# cargo_tests SELECTION FILTER...: runs the tests of the programs that SELECTION selects (all: ''), of these all or those that are
# named. They work against the clock, on machines that others use too: those that fail are tried once more, one after the other.
# What fails twice has failed; what failed once is listed, because it, too, is a defect. FLEXFEED_STRICT=1 has no second try.
cargo_tests() {
	selection=$1
	shift
	mkdir -p "$target"
	rm -f "$target/tests.code"
	# shellcheck disable=SC2086 # a list
	{
		tested=0
		cargo test --locked --workspace --no-fail-fast $selection -- "$@" 2>&1 || tested=$?
		echo "$tested" >"$target/tests.code"
	} | tee "$target/tests.log"
	tested=$(cat "$target/tests.code")
	[ "$tested" != 0 ] || return 0
	[ -z "${FLEXFEED_STRICT:-}" ] || exit "$tested"
	names=$(failed_tests "$target/tests.log")
	count=$(printf '%s' "$names" | grep -c .) || :
	if [ "$count" = 0 ] || [ "$count" -gt "$unstable_most" ]; then
		exit "$tested"
	fi
	step "Trying once more what failed: $(printf '%s' "$names" | tr '\n' ' ')"
	# shellcheck disable=SC2086 # lists
	cargo test --locked --workspace ${selection:---lib --bins --tests} -- --exact --test-threads=1 $names >"$target/again.log" 2>&1 || {
		cat "$target/again.log"
		fail 1 "failed twice: see above and, for the first time, $target/tests.log"
	}
	# Not by the lines of the tests: one after the other, what they write is in the middle of them.
	passed=$(awk '/^test result: ok\. [0-9]+ passed/ { sum += $4 } END { print sum + 0 }' "$target/again.log")
	[ "$passed" -ge "$count" ] || fail 1 "of the $count that failed, $passed were found again: see $target/again.log"
	# shellcheck disable=SC2086 # a list
	printf '%s\n' $names >>"$target/unstable.txt"
	say ''
	say '!!! UNSTABLE: these failed at first and passed at the second try. That is a defect, of the test or of what it tests:'
	# shellcheck disable=SC2086 # a list
	printf '!!!   %s\n' $names >&2
}
