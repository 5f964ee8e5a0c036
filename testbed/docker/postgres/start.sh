#!/bin/sh
# Makes the database at the first start, then is PostgreSQL.
set -eu

data=/var/lib/postgresql/data
as_postgres() {
	setpriv --reuid=postgres --regid=postgres --init-groups "$@"
}

mkdir -p /run/postgresql
chown postgres: /run/postgresql "$data"
chmod 0700 "$data"
if [ ! -e "$data/PG_VERSION" ]; then
	printf '%s\n' "$POSTGRES_PASSWORD" >/tmp/password
	chown postgres: /tmp/password
	as_postgres initdb -D "$data" -U "$POSTGRES_USER" --pwfile=/tmp/password --auth-host=scram-sha-256 --auth-local=trust >/dev/null
	rm /tmp/password
	echo 'host all all all scram-sha-256' >>"$data/pg_hba.conf"
	# By a socket alone until there is a database.
	as_postgres pg_ctl -D "$data" -w -o "-c listen_addresses=''" start >/dev/null
	as_postgres createdb -U "$POSTGRES_USER" "$POSTGRES_DB"
	as_postgres pg_ctl -D "$data" -w stop >/dev/null
fi
exec setpriv --reuid=postgres --regid=postgres --init-groups postgres -D "$data" -c "listen_addresses=*"
