-- Answers when the earliest attempt at an endpoint began, of those that began after an instant, failed and count. A volatile function
-- reads what was committed before it is called. So a settlement sees the attempts that others recorded while it waited for a lock.
CREATE OR REPLACE FUNCTION first_failure(of_webhook uuid, after timestamptz) RETURNS timestamptz LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  RETURN (
    SELECT min(d.started_at) FROM delivery_attempts d
     WHERE d.webhook_id = of_webhook AND d.status <> 1 AND d.counts AND d.started_at > after);
END
$$;
