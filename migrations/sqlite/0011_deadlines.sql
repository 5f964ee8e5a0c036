-- Time in ms after which an update expires of the channel; NULL for a log, whose updates are wanted for ever. It is
-- written into each update when that is signed. Sources of a version before this one sign without it.
ALTER TABLE channels ADD COLUMN deadline_ms INTEGER;
