#!/bin/sh
# Creates the database at the first start, then runs PostgreSQL. POSTGRES_USER, POSTGRES_PASSWORD
# (or POSTGRES_PASSWORD_FILE), POSTGRES_DB and PGDATA have the same meaning as in the official
# image.
set -eu

# The official image does all of this by itself.
! command -v docker-entrypoint.sh >/dev/null || exec docker-entrypoint.sh postgres

volume=/var/lib/postgresql/data
# A folder inside the volume, so that a rename can put it in place atomically.
data=${PGDATA:-$volume/pgdata}
user=${POSTGRES_USER:-postgres}

# As root, switch to PostgreSQL's own user for everything.
if [ "$(id -u)" = 0 ]; then
	chown postgres:postgres /run/postgresql "$volume"
	exec setpriv --reuid=postgres --regid=postgres --init-groups sh "$0" "$@"
fi

release=$(postgres --version | sed 's/.* \([0-9]*\)\..*/\1/')
for place in "$volume" "$data"; do
	made_by=$(cat "$place/PG_VERSION" 2>/dev/null) || continue
	if [ "$place" != "$data" ] || [ "$made_by" != "$release" ]; then
		echo "The volume holds a database of PostgreSQL $made_by from another image, and this is Debian's PostgreSQL $release:" >&2
		echo "set POSTGRES_BASE in .env to the base that it was made with, or restore a backup into a new volume." >&2
		exit 1
	fi
done

if [ ! -d "$data" ]; then
	if [ -n "${POSTGRES_PASSWORD_FILE:-}" ]; then
		POSTGRES_PASSWORD=$(cat "$POSTGRES_PASSWORD_FILE")
	fi
	: "${POSTGRES_PASSWORD:?is needed to make the database}"
	# Created next to its place first: the next start repeats an interrupted creation.
	new=$volume/new
	rm -rf "$new"
	mkdir -m 0700 "$new"
	printf '%s\n' "$POSTGRES_PASSWORD" >"$new.password"
	initdb -D "$new" -U "$user" --encoding=UTF8 --locale=C.UTF-8 --pwfile="$new.password" \
		--auth-host=scram-sha-256 --auth-local=trust >/dev/null
	rm "$new.password"
	echo 'host all all all scram-sha-256' >>"$new/pg_hba.conf"
	# Reachable by a socket in a folder of its own only, until the database exists.
	pg_ctl -D "$new" -w -o "-c listen_addresses='' -c unix_socket_directories=$new" start >/dev/null
	[ "${POSTGRES_DB:-$user}" = postgres ] || createdb -h "$new" -U "$user" "${POSTGRES_DB:-$user}"
	pg_ctl -D "$new" -w stop >/dev/null
	mv "$new" "$data"
fi
exec postgres -D "$data" -c "listen_addresses=*"
