/** Makes many due jobs of one project in one statement: of project $1, $2 jobs to the URL $3, in shard $4. Their ids count from $5. */
export const ADD_DUE_JOBS = `
WITH made AS (
  SELECT (lpad(to_hex(1700000000000 + n), 12, '0') || left(md5(n::text), 20))::uuid AS id,
         now() + n * interval '1 us' AS due_at
    FROM generate_series($5::int, $5::int + $2::int - 1) n
), job AS (
  INSERT INTO jobs (id, project_no, environment, region, target_url, payload, run_at, max_attempts, base_seconds, cap_seconds)
  SELECT id, $1, 1, 0, $3, '{}', due_at, 5, 10, 3600 FROM made
), lane AS (
  INSERT INTO lanes (project_no, region, environment, shard) VALUES ($1, 0, 1, $4) ON CONFLICT DO NOTHING
)
INSERT INTO open_jobs (project_no, environment, region, job_id, due_at, attempts_allowed)
SELECT $1, 1, 0, id, due_at, 5 FROM made
RETURNING job_id AS id`;
