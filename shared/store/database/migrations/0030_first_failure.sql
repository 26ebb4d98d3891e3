-- When the first attempt began that failed and counts, of those at an endpoint that began after an instant. A volatile function reads what
-- was committed before it is called. So a settlement that has waited for another one's flow or endpoint sees that one's attempts.
CREATE OR REPLACE FUNCTION first_failure(of_webhook uuid, after timestamptz) RETURNS timestamptz LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  RETURN (
    SELECT min(d.started_at) FROM delivery_attempts d
     WHERE d.webhook_id = of_webhook AND d.status <> 1 AND d.counts AND d.started_at > after);
END
$$;
