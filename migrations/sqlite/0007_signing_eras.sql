-- The lineage of a channel's updates: one row for each range that one key signed. `last_seq` is NULL while the era is open;
-- `incarnation` is the one that the signatures name, and stays when the channel gets another. Updates outside of all eras
-- are unsigned.
CREATE TABLE signing_eras (
    channel_id BIGINT NOT NULL REFERENCES channels (id) ON DELETE CASCADE,
    first_seq BIGINT NOT NULL CHECK (first_seq > 0),
    last_seq BIGINT CHECK (last_seq >= first_seq),
    incarnation TEXT NOT NULL,
    public_key BLOB NOT NULL,
    PRIMARY KEY (channel_id, first_seq)
);

CREATE UNIQUE INDEX signing_eras_open ON signing_eras (channel_id) WHERE last_seq IS NULL;
