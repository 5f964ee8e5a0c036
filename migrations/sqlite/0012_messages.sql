-- Messages of live channels, between the publisher and the source that sends them. A row waits until it is taken (`taken_at`) or
-- expires; after that its payload is empty, and the row stays for some minutes so that its event id is not sent twice.
CREATE TABLE messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    channel_id BIGINT NOT NULL REFERENCES channels (id) ON DELETE CASCADE,
    event_id TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    taken_at BIGINT,
    payload BLOB NOT NULL CHECK (LENGTH(payload) <= 70000),
    UNIQUE (channel_id, event_id)
);

CREATE INDEX messages_waiting ON messages (channel_id, id) WHERE taken_at IS NULL;
CREATE INDEX messages_by_end ON messages (COALESCE(taken_at, expires_at));
