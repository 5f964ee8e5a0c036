-- Channels and feeds that are set up while the source runs.
ALTER TABLE channels ADD COLUMN groups TEXT;
ALTER TABLE channels ADD COLUMN rate_bps BIGINT;
ALTER TABLE channels ADD COLUMN private BOOLEAN NOT NULL DEFAULT FALSE;
ALTER TABLE channels ADD COLUMN keep_count BIGINT;
ALTER TABLE channels ADD COLUMN keep_age BIGINT;
ALTER TABLE channels ADD COLUMN origin TEXT NOT NULL DEFAULT 'flags' CHECK (origin IN ('flags', 'managed'));
ALTER TABLE channels ADD COLUMN active BOOLEAN NOT NULL DEFAULT TRUE;

-- Who publishes a channel. `fence` grows with each holder and never shrinks; the lease ends at `lease_until`. A lease
-- is also over if it would last longer than it was given for: the clock was set back.
ALTER TABLE channels ADD COLUMN fence BIGINT NOT NULL DEFAULT 0;
ALTER TABLE channels ADD COLUMN holder TEXT;
ALTER TABLE channels ADD COLUMN holder_name TEXT;
ALTER TABLE channels ADD COLUMN lease_until BIGINT;
ALTER TABLE channels ADD COLUMN lease_ttl BIGINT;

-- `address` is the URL with credentials, if it has any; the time between polls is in milliseconds.
ALTER TABLE feeds ADD COLUMN address TEXT;
ALTER TABLE feeds ADD COLUMN local BOOLEAN NOT NULL DEFAULT FALSE;
ALTER TABLE feeds ADD COLUMN min_interval BIGINT;
ALTER TABLE feeds ADD COLUMN max_interval BIGINT;
ALTER TABLE feeds ADD COLUMN title TEXT;
ALTER TABLE feeds ADD COLUMN origin TEXT NOT NULL DEFAULT 'flags' CHECK (origin IN ('flags', 'managed'));
ALTER TABLE feeds ADD COLUMN active BOOLEAN NOT NULL DEFAULT TRUE;
ALTER TABLE feeds ADD COLUMN moved_to TEXT;
ALTER TABLE feeds ADD COLUMN gone_at BIGINT;
ALTER TABLE feeds ADD COLUMN poll_interval BIGINT;

-- Polls that shared no entry with the one before.
CREATE TABLE gaps (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    channel_id BIGINT NOT NULL REFERENCES channels (id) ON DELETE CASCADE,
    url TEXT NOT NULL,
    noticed_at BIGINT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('suspected', 'filled', 'partly', 'open')),
    detail TEXT NOT NULL,
    entries BIGINT NOT NULL
);

CREATE INDEX gaps_by_channel ON gaps (channel_id, id);

-- Enrolment tokens get a number to be named by, limits, and an end. `channels` is a JSON array; [] is all.
CREATE TABLE tokens_2 (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    hash BLOB NOT NULL UNIQUE,
    label TEXT NOT NULL,
    uses BIGINT NOT NULL DEFAULT 0,
    use_limit BIGINT,
    expires_at BIGINT,
    public BOOLEAN NOT NULL DEFAULT FALSE,
    channels TEXT NOT NULL DEFAULT '[]',
    created_at BIGINT NOT NULL,
    revoked_at BIGINT
);

INSERT INTO tokens_2 (hash, label, created_at) SELECT hash, label, created_at FROM tokens ORDER BY created_at, hash;
DROP TABLE tokens;
ALTER TABLE tokens_2 RENAME TO tokens;

-- Who was admitted. `credential` is the SHA-256 of what the receiver made for itself; `channels` is a JSON array of
-- what it asked for last.
CREATE TABLE receivers (
    id TEXT PRIMARY KEY NOT NULL,
    credential BLOB NOT NULL,
    name TEXT NOT NULL,
    software TEXT NOT NULL,
    address TEXT NOT NULL,
    channels TEXT NOT NULL,
    token_id BIGINT REFERENCES tokens (id) ON DELETE SET NULL,
    enrolled_at BIGINT NOT NULL,
    seen_at BIGINT NOT NULL,
    revoked_at BIGINT
);

CREATE INDEX receivers_by_token ON receivers (token_id);

-- Grows with every change that a running source has to look at.
CREATE TABLE settings (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    version BIGINT NOT NULL
);

INSERT INTO settings (id, version) VALUES (1, 1);
