-- Keys that sign updates, in the order in which they were made. `endorsements` are signatures by which it and an earlier key
-- vouch for each other, 128 bytes each: signer, subject, signature. `begun_at` is the time since which updates are signed with
-- the key; from then on sources with an earlier one publish nothing. A restore clears it.
CREATE TABLE signing_keys (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    public_key BLOB NOT NULL UNIQUE,
    endorsements BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    begun_at INTEGER
);
