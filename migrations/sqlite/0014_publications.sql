-- Entries that publishers have sent, until the source that holds the channel's lease has stored them as updates. Rows of one
-- channel become visible in the order of their numbers.
CREATE TABLE publications (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    channel_id BIGINT NOT NULL REFERENCES channels (id) ON DELETE CASCADE,
    entry_id TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    payload BLOB NOT NULL CHECK (LENGTH(payload) <= 8000000),
    UNIQUE (channel_id, entry_id)
);

CREATE INDEX publications_in_order ON publications (channel_id, id);
