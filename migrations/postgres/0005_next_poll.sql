-- When the poll after the last one is due: later than `poll_interval` says where polls fail, or the server asks for it. NULL where
-- that is not known, and where there will be none.
ALTER TABLE feeds ADD COLUMN next_poll BIGINT;
