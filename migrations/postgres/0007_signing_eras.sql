-- The table is described in the migration of the same number for SQLite.
CREATE TABLE signing_eras (
    channel_id BIGINT NOT NULL REFERENCES channels (id) ON DELETE CASCADE,
    first_seq BIGINT NOT NULL CHECK (first_seq > 0),
    last_seq BIGINT CHECK (last_seq >= first_seq),
    incarnation TEXT NOT NULL,
    public_key BYTEA NOT NULL,
    PRIMARY KEY (channel_id, first_seq)
);

CREATE UNIQUE INDEX signing_eras_open ON signing_eras (channel_id) WHERE last_seq IS NULL;
