-- Times in which the publishing source could not keep up: a JSON array, the oldest first.
ALTER TABLE source_info ADD COLUMN overloads TEXT NOT NULL DEFAULT '[]';
