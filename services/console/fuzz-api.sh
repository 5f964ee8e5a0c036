#!/bin/sh
# Fuzzes the API from its own description: starts a console on a throw-away SQLite database, signs in as an operator,
# and has schemathesis send whatever the description allows, and what it does not. No answer may be a 5xx.
#
# fuzz-api.sh PROGRAM SCHEMATHESIS [EXAMPLES]: the built flexfeed-console, the schemathesis to run, and how many
# requests for each call (50). FUZZ_DATABASE_URL names an empty database to use instead of SQLite; with FUZZ_SEED the
# requests are the same each time.
set -eu

# Both from here: it is run in a folder that goes again, where it keeps what it remembers.
program=$(readlink -f -- "$1")
schemathesis=$(command -v -- "$2")
case $schemathesis in /*) ;; *) schemathesis=$PWD/$schemathesis ;; esac
examples=${3:-50}

folder=$(mktemp -d)
pid=
# shellcheck disable=SC2317,SC2329 # the trap calls it
finish() {
	[ -z "$pid" ] || kill "$pid" 2>/dev/null || :
	[ -z "$pid" ] || wait "$pid" 2>/dev/null || :
	rm -rf "$folder"
}
trap finish EXIT
trap 'exit 130' INT TERM
cd "$folder"

export DATABASE_URL="${FUZZ_DATABASE_URL:-sqlite://$folder/console.db}"
echo 'an operator for tests' >"$folder/password"
"$program" user add fuzz --role operator --password-file "$folder/password"
"$program" serve --listen 127.0.0.1:0 --log-format json 2>"$folder/log" &
pid=$!

base=
for _ in $(seq 1 1200); do
	base=$(sed -n 's/.*the console is at \(http:[^"]*\)\/".*/\1/p' "$folder/log" | head -n 1)
	[ -z "$base" ] || break
	kill -0 "$pid" 2>/dev/null || break
	sleep 0.1
done
if [ -z "$base" ]; then
	cat "$folder/log" >&2
	exit 1
fi

# Its own token: what is fuzzed may sign everybody out, and revoke whatever it finds.
answer=$(curl -fsS -c "$folder/cookies" -H 'content-type: application/json' \
	-d '{"name":"fuzz","password":"an operator for tests"}' "$base/api/v1/session")
csrf=$(printf '%s' "$answer" | sed 's/.*"csrf":"\([^"]*\)".*/\1/')
answer=$(curl -fsS -b "$folder/cookies" -H "x-csrf-token: $csrf" -H 'content-type: application/json' \
	-d '{"name":"fuzz","scopes":["operate","admin"]}' "$base/api/v1/api-tokens")
token=$(printf '%s' "$answer" | sed 's/.*"token":"\([^"]*\)".*/\1/')
# Something to find.
curl -fsS -o /dev/null -b "$folder/cookies" -H "x-csrf-token: $csrf" -H 'content-type: application/json' \
	-d '{"name":"lore"}' "$base/api/v1/channels"
curl -fsS -o /dev/null -b "$folder/cookies" -H "x-csrf-token: $csrf" -H 'content-type: application/json' \
	-d '{"channel":"lore","url":"https://example.org/feed"}' "$base/api/v1/feeds"

# Events have no end, and the token and its owner are needed until ours.
status=0
"$schemathesis" run "$base/api/v1/openapi.json" --url "$base" \
	--header "Authorization: Bearer $token" \
	--exclude-path /api/v1/events \
	--exclude-operation-id revoke_api_token --exclude-operation-id edit_user --exclude-operation-id remove_user \
	--checks not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance \
	${FUZZ_SEED:+--seed "$FUZZ_SEED"} \
	--max-examples "$examples" --request-timeout 30 --no-color || status=$?

if grep -q '"level":"ERROR"' "$folder/log" || grep -q 'panicked' "$folder/log"; then
	echo 'the console said:' >&2
	grep -e '"level":"ERROR"' -e panicked "$folder/log" | head -n 20 >&2
	status=1
fi
kill -0 "$pid" || status=1
exit "$status"
