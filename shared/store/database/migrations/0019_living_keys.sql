-- Keys list and count the keys of their environment that live, however many were deleted. The table has some keys for each
-- project, so the index is built at once.
CREATE INDEX IF NOT EXISTS api_keys_living ON api_keys (project_no, environment, expires_at) WHERE revoked_at IS NULL;
