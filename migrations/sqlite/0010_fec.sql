-- Erasure coding of a channel's flow: off, or a policy and perhaps a code, such as adaptive, tail,xor or proactive:2/20. Sources
-- of a version before this one send no repair symbols.
ALTER TABLE channels ADD COLUMN fec TEXT NOT NULL DEFAULT 'adaptive';
