import { expect, test } from "bun:test";
import { join } from "node:path";
import { createTestDatabase } from "../../test/support/postgres.ts";
import { startTcpProxy } from "../../test/support/tcp-proxy.ts";
import { runProgram } from "./test-support.ts";

test("with --wait a migration waits for a Postgres that is not there yet, in one line; without, it ends", async () => {
  const database = await createTestDatabase("migrate_wait");
  const direct = new URL(database.url);
  const proxy = await startTcpProxy({ host: direct.hostname, port: Number(direct.port) });
  const url = new URL(database.url);
  url.hostname = "127.0.0.1";
  url.port = String(proxy.port);
  try {
    proxy.cut();
    const refused = await runProgram("migrate.ts", [], { DATABASE_URL: url.href });
    expect([refused.code, refused.stdout]).toEqual([1, ""]);

    const waiting = Bun.spawn([process.execPath, join(import.meta.dir, "migrate.ts"), "--wait"], {
      env: { PATH: process.env.PATH ?? "", DATABASE_URL: url.href },
      stdout: "pipe",
      stderr: "pipe",
    });
    let told = "";
    for await (const chunk of waiting.stderr) {
      if (told === "") proxy.mend();
      told += new TextDecoder().decode(chunk);
    }
    expect([await waiting.exited, await waiting.stdout.text()]).toEqual([0, "the schema is up to date\n"]);
    expect(told).toMatch(/^waiting for Postgres: [^\n]+\n$/);
  } finally {
    await proxy.stop();
    await database.drop();
  }
});

test("a migration that meets traffic at its locks, in a deadlock too, is tried again", async () => {
  const database = await createTestDatabase("migrate_again");
  const sql = new Bun.SQL(database.url, { max: 1 });
  try {
    // The first two statements of the kind that migrations are made of fail.
    await sql.unsafe(`
      CREATE SEQUENCE tries;
      CREATE FUNCTION lose() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
        CASE nextval('public.tries')
          WHEN 1 THEN RAISE EXCEPTION 'deadlock detected' USING ERRCODE = '40P01';
          WHEN 2 THEN RAISE EXCEPTION 'canceling statement due to lock timeout' USING ERRCODE = '55P03';
          ELSE NULL;
        END CASE;
      END $$;
      CREATE EVENT TRIGGER lose ON ddl_command_start WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION lose()`);
    const { code, stdout, stderr } = await runProgram("migrate.ts", [], { DATABASE_URL: database.url });
    const again = "a table is in use; trying again in 3000 ms\n";
    expect([code, stdout, stderr]).toEqual([0, "the schema is up to date\n", again + again]);
  } finally {
    await sql.end();
    await database.drop();
  }
});
