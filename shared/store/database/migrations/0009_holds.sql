-- Regions in which nothing is sent until an operator says so.
CREATE TABLE held_regions (
  held_at timestamptz NOT NULL DEFAULT now(),
  region smallint PRIMARY KEY
);
--> statement-breakpoint
-- The Postgres in which this cell's facts were last at work; the one row tells a restored copy from it.
CREATE TABLE cell (
  system_identifier bigint NOT NULL,
  timeline integer NOT NULL,
  one boolean PRIMARY KEY DEFAULT true CHECK (one)
);
