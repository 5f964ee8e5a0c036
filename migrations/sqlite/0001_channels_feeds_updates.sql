-- Times are Unix milliseconds (UTC). Only what SQLite and PostgreSQL share is used below, except this line: it marks the
-- file as flexfeed's ("flxf"), so that the database of another program is never taken for ours.
PRAGMA application_id = 1718384742;

-- What one subscribes to. `head` is the last seq ever given out: it only grows, so no seq is used twice.
CREATE TABLE channels (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    incarnation TEXT NOT NULL,
    head BIGINT NOT NULL DEFAULT 0,
    created_at BIGINT NOT NULL
);

-- Where a channel's updates come from, and what the next conditional request says.
CREATE TABLE feeds (
    id INTEGER PRIMARY KEY,
    channel_id BIGINT NOT NULL REFERENCES channels (id) ON DELETE CASCADE,
    url TEXT NOT NULL,
    etag TEXT,
    last_modified TEXT,
    last_poll BIGINT,
    state TEXT,
    detail TEXT,
    UNIQUE (channel_id, url)
);

-- The version of each entry that was stored last.
CREATE TABLE entries (
    feed_id BIGINT NOT NULL REFERENCES feeds (id) ON DELETE CASCADE,
    entry_id TEXT NOT NULL,
    hash BLOB NOT NULL,
    seq BIGINT NOT NULL,
    PRIMARY KEY (feed_id, entry_id)
);

-- Every version of every entry, as it is sent.
CREATE TABLE updates (
    channel_id BIGINT NOT NULL REFERENCES channels (id) ON DELETE CASCADE,
    seq BIGINT NOT NULL CHECK (seq > 0),
    feed_id BIGINT NOT NULL REFERENCES feeds (id) ON DELETE CASCADE,
    entry_id TEXT NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('created', 'updated')),
    created_at BIGINT NOT NULL,
    encoded BLOB NOT NULL,
    PRIMARY KEY (channel_id, seq)
);

CREATE INDEX updates_by_feed ON updates (feed_id);

-- SHA-256 of the enrolment tokens; the tokens themselves are nowhere in the store.
CREATE TABLE tokens (
    hash BLOB PRIMARY KEY NOT NULL,
    label TEXT NOT NULL,
    created_at BIGINT NOT NULL
);
