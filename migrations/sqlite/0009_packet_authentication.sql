-- Authentication of the packets of a channel's flow: none, signature, tags or auto. Sources of a version before this one send
-- packets without any.
ALTER TABLE channels ADD COLUMN packet_authentication TEXT NOT NULL DEFAULT 'none';
