-- Since 0006 `waiting` stands in for this column, and no process reads it. An `admin` command of the release before names it
-- when it makes a project: it fails without a trace and is run again with this release.
ALTER TABLE flows DROP COLUMN IF EXISTS waiting_regions;
