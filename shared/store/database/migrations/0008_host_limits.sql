-- How many requests a delivery node may have in flight to a host, where operators want fewer than it takes by itself.
-- Every node reads all of it every other second.
CREATE TABLE host_limits (
  limited_at timestamptz NOT NULL DEFAULT now(),
  requests integer NOT NULL CHECK (requests >= 0),
  host text PRIMARY KEY
);
