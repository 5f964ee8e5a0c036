-- Legs by which a receiver takes the flow at once, where it has two, with the state of each, such as multicast:working amt:lost.
ALTER TABLE receiver_states ADD COLUMN legs TEXT NOT NULL DEFAULT '';
