-- How long after its due time a run was dialled, in milliseconds, and what it waited for (domain/wait.ts). Null for runs of before.
ALTER TABLE runs ADD COLUMN IF NOT EXISTS late_ms integer, ADD COLUMN IF NOT EXISTS held_for smallint;
