-- The channel's head when the gap was noticed: entries with a larger seq came after it, or were found in it. NULL where
-- an earlier version noticed it.
ALTER TABLE gaps ADD COLUMN after_seq BIGINT;
