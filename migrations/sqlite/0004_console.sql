-- What the console shows and asks for: where receivers stand, how they moved, how updates arrived, and who may look.

-- Each transaction that changes something the console shows takes the next number here first, so that numbers become
-- visible in their order: who has read up to one misses nothing by asking for larger ones. Numbers begin with the time at
-- which the database was made or restored, which is also the `epoch`.
CREATE TABLE change_number (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    number BIGINT NOT NULL,
    epoch BIGINT NOT NULL
);

INSERT INTO change_number (id, number, epoch) SELECT 1, now, now FROM (
    SELECT CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) AS now) AS clock;

-- Who wrote records, and which of their batches was the last: one that is written again, because its answer was lost, is not
-- there twice.
CREATE TABLE recorders (
    run TEXT PRIMARY KEY NOT NULL,
    number BIGINT NOT NULL,
    at BIGINT NOT NULL,
    change BIGINT NOT NULL
);

-- `tags` is a JSON array; `held` keeps a receiver on its unicast path. A receiver without a `change` has changed, and gets
-- the number of the next transaction that takes one.
ALTER TABLE receivers ADD COLUMN label TEXT;
ALTER TABLE receivers ADD COLUMN tags TEXT NOT NULL DEFAULT '[]';
ALTER TABLE receivers ADD COLUMN held BOOLEAN NOT NULL DEFAULT FALSE;
ALTER TABLE receivers ADD COLUMN change BIGINT;

CREATE INDEX receivers_by_change ON receivers (change);
CREATE INDEX receivers_changed ON receivers (id) WHERE change IS NULL;

-- Receivers that were forgotten, for those who have them in memory.
CREATE TABLE forgotten_receivers (
    receiver TEXT PRIMARY KEY NOT NULL,
    at BIGINT NOT NULL,
    change BIGINT NOT NULL
);

CREATE INDEX forgotten_receivers_by_change ON forgotten_receivers (change);

ALTER TABLE feeds ADD COLUMN paused BOOLEAN NOT NULL DEFAULT FALSE;

-- Where each receiver stands in each of its channels.
CREATE TABLE receiver_states (
    receiver TEXT NOT NULL,
    channel TEXT NOT NULL,
    connected BOOLEAN NOT NULL,
    rung TEXT NOT NULL,
    since BIGINT NOT NULL,
    cause TEXT NOT NULL,
    cursor BIGINT,
    backlog BIGINT NOT NULL,
    key_sequence BIGINT,
    rtt_us BIGINT,
    address TEXT NOT NULL,
    session BIGINT,
    updated_at BIGINT NOT NULL,
    change BIGINT NOT NULL,
    PRIMARY KEY (receiver, channel)
);

CREATE INDEX receiver_states_by_change ON receiver_states (change);

-- Every move of a receiver between rungs.
CREATE TABLE moves (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    at BIGINT NOT NULL,
    receiver TEXT NOT NULL,
    name TEXT NOT NULL,
    channel TEXT NOT NULL,
    from_rung TEXT NOT NULL,
    to_rung TEXT NOT NULL,
    cause TEXT NOT NULL,
    change BIGINT NOT NULL
);

CREATE INDEX moves_by_receiver ON moves (receiver, id);
CREATE INDEX moves_by_channel ON moves (channel, id);
CREATE INDEX moves_by_time ON moves (at);
CREATE INDEX moves_by_change ON moves (change);

-- Every connection of a receiver; the numbers are given by who writes them, and grow with time.
CREATE TABLE sessions (
    id BIGINT PRIMARY KEY NOT NULL,
    receiver TEXT NOT NULL,
    name TEXT NOT NULL,
    software TEXT NOT NULL,
    address TEXT NOT NULL,
    began_at BIGINT NOT NULL,
    ended_at BIGINT,
    end_cause TEXT
);

CREATE INDEX sessions_by_receiver ON sessions (receiver, id);
CREATE INDEX sessions_by_time ON sessions (began_at);
CREATE INDEX sessions_open ON sessions (receiver) WHERE ended_at IS NULL;

-- What was counted in each step of time, of a channel or of all ('') together. The first ones are sums over `weight`
-- looks, `lag_updates` and `lag_ms` the worst of them, and those from `updates` on are what the step added.
CREATE TABLE samples (
    channel TEXT NOT NULL,
    step_ms BIGINT NOT NULL,
    at BIGINT NOT NULL,
    weight BIGINT NOT NULL,
    receivers BIGINT NOT NULL,
    connected BIGINT NOT NULL,
    multicast BIGINT NOT NULL,
    amt BIGINT NOT NULL,
    replicated BIGINT NOT NULL,
    unicast BIGINT NOT NULL,
    behind BIGINT NOT NULL,
    lag_updates BIGINT NOT NULL,
    lag_ms BIGINT NOT NULL,
    updates BIGINT NOT NULL,
    moves BIGINT NOT NULL,
    flow_bytes BIGINT NOT NULL,
    copy_bytes BIGINT NOT NULL,
    unicast_bytes BIGINT NOT NULL,
    repair_bytes BIGINT NOT NULL,
    equivalent_bytes BIGINT NOT NULL,
    PRIMARY KEY (channel, step_ms, at)
);

CREATE INDEX samples_by_time ON samples (step_ms, at);

-- How far each update got.
CREATE TABLE update_progress (
    channel TEXT NOT NULL,
    seq BIGINT NOT NULL,
    published_at BIGINT NOT NULL,
    expected BIGINT NOT NULL,
    delivered BIGINT NOT NULL,
    half_ms BIGINT,
    p99_ms BIGINT,
    all_ms BIGINT,
    change BIGINT NOT NULL,
    PRIMARY KEY (channel, seq)
);

CREATE INDEX update_progress_by_change ON update_progress (change);

-- The present totals of each channel. `flow` is a JSON object.
CREATE TABLE pulses (
    channel TEXT PRIMARY KEY NOT NULL,
    at BIGINT NOT NULL,
    head BIGINT NOT NULL,
    receivers BIGINT NOT NULL,
    connected BIGINT NOT NULL,
    multicast BIGINT NOT NULL,
    amt BIGINT NOT NULL,
    replicated BIGINT NOT NULL,
    unicast BIGINT NOT NULL,
    delivered BIGINT NOT NULL,
    behind BIGINT NOT NULL,
    lag_updates BIGINT NOT NULL,
    lag_ms BIGINT NOT NULL,
    updates_per_hour BIGINT NOT NULL,
    flow_bytes BIGINT NOT NULL,
    copy_bytes BIGINT NOT NULL,
    unicast_bytes BIGINT NOT NULL,
    repair_bytes BIGINT NOT NULL,
    equivalent_bytes BIGINT NOT NULL,
    flow TEXT NOT NULL,
    change BIGINT NOT NULL
);

-- The relays that receivers are told of, as the source sees them.
CREATE TABLE relay_states (
    address TEXT PRIMARY KEY NOT NULL,
    asked TEXT NOT NULL,
    healthy BOOLEAN NOT NULL,
    since BIGINT,
    answer_us BIGINT,
    detail TEXT NOT NULL,
    gone BOOLEAN NOT NULL,
    at BIGINT NOT NULL,
    change BIGINT NOT NULL
);

-- How the polls of each feed went, hour by hour.
CREATE TABLE feed_hours (
    channel TEXT NOT NULL,
    url TEXT NOT NULL,
    hour BIGINT NOT NULL,
    polls BIGINT NOT NULL,
    ok BIGINT NOT NULL,
    not_modified BIGINT NOT NULL,
    failed BIGINT NOT NULL,
    challenged BIGINT NOT NULL,
    entries BIGINT NOT NULL,
    PRIMARY KEY (channel, url, hour)
);

CREATE INDEX feed_hours_by_time ON feed_hours (hour);

-- When a feed's state changed, and what was seen then.
CREATE TABLE feed_events (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    channel TEXT NOT NULL,
    url TEXT NOT NULL,
    at BIGINT NOT NULL,
    state TEXT NOT NULL,
    detail TEXT NOT NULL,
    excerpt TEXT,
    change BIGINT NOT NULL
);

CREATE INDEX feed_events_by_feed ON feed_events (channel, url, id);
CREATE INDEX feed_events_by_time ON feed_events (at);
CREATE INDEX feed_events_by_change ON feed_events (change);

-- What the source that publishes says about itself. `pins`, `public_address` and `warnings` are JSON arrays.
CREATE TABLE source_info (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    holder TEXT NOT NULL,
    software TEXT NOT NULL,
    started_at BIGINT NOT NULL,
    public_address TEXT NOT NULL,
    pins TEXT NOT NULL,
    listen TEXT NOT NULL,
    http TEXT NOT NULL,
    warnings TEXT NOT NULL,
    draining BOOLEAN NOT NULL,
    at BIGINT NOT NULL,
    change BIGINT NOT NULL
);

-- What operators ask of the source.
CREATE TABLE commands (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL,
    receiver TEXT,
    channel TEXT,
    url TEXT,
    argument TEXT,
    asked_by TEXT NOT NULL,
    asked_at BIGINT NOT NULL,
    taken_at BIGINT,
    done_at BIGINT,
    state TEXT NOT NULL CHECK (state IN ('queued', 'taken', 'done', 'failed', 'expired')),
    result TEXT
);

CREATE INDEX commands_open ON commands (id) WHERE state IN ('queued', 'taken');
CREATE INDEX commands_by_time ON commands (asked_at);

-- People. `password` is an argon2id hash in PHC form; who signs in elsewhere has an issuer and a subject instead.
CREATE TABLE users (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    password TEXT,
    role TEXT NOT NULL CHECK (role IN ('viewer', 'operator')),
    created_at BIGINT NOT NULL,
    disabled_at BIGINT,
    issuer TEXT,
    subject TEXT,
    UNIQUE (issuer, subject)
);

-- Browsers that are signed in, by the SHA-256 of their cookie.
CREATE TABLE web_sessions (
    hash BLOB PRIMARY KEY NOT NULL,
    user_id BIGINT NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    csrf BLOB NOT NULL,
    created_at BIGINT NOT NULL,
    seen_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    address TEXT NOT NULL,
    agent TEXT NOT NULL
);

CREATE INDEX web_sessions_by_user ON web_sessions (user_id, seen_at);
CREATE INDEX web_sessions_by_end ON web_sessions (expires_at);

-- Programs that may call the API, by the SHA-256 of their token. `scopes` is a JSON array.
CREATE TABLE api_tokens (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    hash BLOB NOT NULL UNIQUE,
    name TEXT NOT NULL,
    user_id BIGINT NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    scopes TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT,
    seen_at BIGINT,
    revoked_at BIGINT
);

CREATE INDEX api_tokens_by_user ON api_tokens (user_id);

-- Who did what. Rows are only added, and go when they are old. `detail` is JSON.
CREATE TABLE audit (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    at BIGINT NOT NULL,
    actor TEXT NOT NULL,
    via TEXT NOT NULL,
    action TEXT NOT NULL,
    target TEXT NOT NULL,
    detail TEXT NOT NULL,
    outcome TEXT NOT NULL,
    address TEXT NOT NULL
);

CREATE INDEX audit_by_time ON audit (at);
CREATE INDEX audit_by_actor ON audit (actor, id);

-- The link by which the first operator is made: the SHA-256 of its token.
CREATE TABLE setup (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    hash BLOB NOT NULL,
    created_at BIGINT NOT NULL,
    used_at BIGINT
);
