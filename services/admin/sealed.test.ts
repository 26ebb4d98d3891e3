import { afterAll, beforeAll, beforeEach, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { createIdSource, REQUEST_PREFIX, uuidToId, WEBHOOK_PREFIX } from "../../shared/domain/ids.ts";
import { PAYLOAD_BYTES_MAX } from "../../shared/domain/job.ts";
import type { ProjectNo } from "../../shared/domain/scope.ts";
import { createSeal } from "../../shared/platform/seal/seal.ts";
import { listSealed, type RowKey } from "../../shared/store/cell/sealed.ts";
import { rotateWebhookSecret } from "../../shared/store/resources/webhooks.ts";
import { startStore, type TestStore } from "../../shared/store/test-support.ts";
import { replacingUnreadable, resealing, walkSealed } from "./sealed.ts";

const [OLD_KEY, NEW_KEY] = [randomBytes(32), randomBytes(32)];
const old = createSeal(OLD_KEY);
const both = createSeal(NEW_KEY, [OLD_KEY]);
const alone = createSeal(NEW_KEY);
const [newPrint = "", oldPrint = ""] = both.fingerprints;
/** More than a page, so that the last row of a page and the first of the next are among them. */
const ENDPOINTS = 1_100;

let store: TestStore;
let projectNo: ProjectNo;
beforeAll(async () => {
  store = await startStore();
  projectNo = await store.addProject();
});
afterAll(() => store.stop());
beforeEach(async () => {
  await store.query("TRUNCATE webhooks, idempotency_keys");
  await store.query("DELETE FROM signing_secrets");
});

const ids = createIdSource(randomBytes);

async function addSecret(text: string): Promise<void> {
  await store.query(
    "INSERT INTO signing_secrets (id, project_no, environment, sealed) VALUES (gen_random_uuid(), $1, 1, $2)",
    [projectNo, old.seal(text)],
  );
}

async function addEndpoints(count: number): Promise<void> {
  await store.query(
    `INSERT INTO webhooks (project_no, environment, id, events, url, sealed_secret, sealed_old_secret)
     SELECT $1, n % 2, gen_random_uuid(), 3, 'https://example.com/' || n, s, CASE WHEN n % 3 = 0 THEN s END
       FROM unnest($2::bytea[]) WITH ORDINALITY AS given (s, n)`,
    [projectNo, Array.from({ length: count }, (_, n) => old.seal(`secret ${n}`))],
  );
}

async function keepAnswer(answer: Buffer | null): Promise<void> {
  await store.query(
    `INSERT INTO idempotency_keys (created_at, project_no, environment, digest, request_hash, job_ids, answer)
     VALUES (now(), $1, 1, $2, '', '{}', $3)`,
    [projectNo, randomBytes(32), answer],
  );
}

const secrets = async () =>
  (
    await store.query<{ n: number; sealed: Buffer; old: Buffer | null }>(
      `SELECT split_part(url, '/', 4)::int - 1 AS n, sealed_secret AS sealed, sealed_old_secret AS old FROM webhooks ORDER BY 1`,
    )
  ).map(({ n, sealed, old: before }) => ({ n, sealed, old: before }));

test("a walk over many pages leaves everything under the new key with the text that it had, and a second one changes nothing", async () => {
  await addSecret("signing");
  await addEndpoints(ENDPOINTS);
  await keepAnswer(old.seal('{"secret":"kept"}'));
  const olds = Math.floor(ENDPOINTS / 3);
  const first = await walkSealed(store.db, both, resealing(both));
  expect(first.replaced).toBe(1 + ENDPOINTS + olds + 1);
  expect(first.found).toEqual(
    new Map([
      [newPrint, 0],
      [oldPrint, first.replaced],
    ]),
  );

  const rows = await secrets();
  for (const { n, sealed, old: before } of rows) {
    expect(alone.open(sealed)).toBe(`secret ${n}`);
    if (before !== null) expect(alone.open(before)).toBe(`secret ${n}`);
  }
  expect(rows.filter(({ old: before }) => before !== null)).toHaveLength(olds);
  const second = await walkSealed(store.db, both, resealing(both));
  expect(second).toEqual({
    found: new Map([
      [newPrint, first.replaced],
      [oldPrint, 0],
    ]),
    unreadable: 0,
    replaced: 0,
  });
  expect(await secrets()).toEqual(rows);
});

test("answers that hold no secret stay as they are, whatever their first byte is", async () => {
  const plain = Buffer.from('{"id":"sch_1"}');
  await keepAnswer(plain);
  await keepAnswer(null);
  let sealed = old.seal("x");
  while (sealed[0] !== plain[0]) sealed = old.seal("x");
  await keepAnswer(sealed);
  expect(await walkSealed(store.db, both, resealing(both))).toMatchObject({ unreadable: 0, replaced: 1 });
  const answers = await store.query<{ answer: Buffer | null }>("SELECT answer FROM idempotency_keys");
  expect(answers.filter(({ answer }) => answer?.equals(plain))).toHaveLength(1);
  expect(answers.filter(({ answer }) => answer === null)).toHaveLength(1);
});

test("answers that repeat payloads are read a few megabytes at a time, and none is left out", async () => {
  const large = Buffer.from(JSON.stringify({ payload: "x".repeat(PAYLOAD_BYTES_MAX) }));
  for (let count = 0; count < 30; count++) await keepAnswer(large);
  for (let count = 0; count < 3; count++) await keepAnswer(old.seal("{}"));
  const met: number[] = [];
  let after: RowKey | null = null;
  do {
    const { rows, next } = await listSealed(store.db, "kept_answers", after);
    expect(rows.reduce((sum, { sealed }) => sum + sealed.length, 0)).toBeLessThan(5_000_000);
    met.push(rows.length);
    after = next;
  } while (after !== null);
  expect(met.length).toBeGreaterThan(1);
  expect(met.reduce((sum, count) => sum + count)).toBe(33);
  expect(await walkSealed(store.db, both, resealing(both))).toMatchObject({ unreadable: 0, replaced: 3 });
});

test("what no key at hand opens is counted, and replaced only on request", async () => {
  await addSecret("signing");
  await addEndpoints(3);
  await keepAnswer(old.seal("{}"));
  const before = await secrets();
  expect(await walkSealed(store.db, alone, resealing(alone))).toMatchObject({ unreadable: 6, replaced: 0 });
  expect(await secrets()).toEqual(before);
  expect((await walkSealed(store.db, alone, replacingUnreadable(alone))).replaced).toBe(5);
  for (const { sealed } of await secrets()) expect(alone.open(sealed)).toMatch(/^whsec_[A-Za-z0-9+/]{43}=$/);
});

test("a row that somebody holds is not waited for, and the next walk finds it", async () => {
  await addEndpoints(2);
  const other = await store.session();
  await other.query("BEGIN");
  await other.query("SELECT FROM webhooks WHERE url = 'https://example.com/1' FOR NO KEY UPDATE");
  expect((await walkSealed(store.db, both, resealing(both))).replaced).toBe(1);
  await other.query("COMMIT");
  const next = await walkSealed(store.db, both, resealing(both));
  expect([next.found.get(oldPrint), next.replaced]).toEqual([1, 1]);
});

test("a secret that is rotated between the look and the change keeps what the rotation made of it", async () => {
  await addEndpoints(1);
  const [row] = await store.query<{ id: string; environment: number }>(
    "SELECT id, environment FROM webhooks",
  );
  const id = uuidToId(WEBHOOK_PREFIX, row?.id ?? "");
  const environment = row?.environment === 0 ? "development" : "production";
  const rotated = both.seal("rotated");
  const db: typeof store.db = {
    ...store.db,
    async run(name, text, values) {
      if (name === "replace_webhook_secrets") {
        const cause = { requestId: ids.next(REQUEST_PREFIX, Date.now()), keyNo: 0 };
        await rotateWebhookSecret(store.db, { projectNo, environment }, id, rotated, cause, null);
      }
      return store.db.run(name, text, values);
    },
  };
  const walk = await walkSealed(db, both, resealing(both));
  const [after] = await secrets();
  expect(after?.sealed).toEqual(rotated);
  // The rotation moved the secret to the place of the old one, where this same walk has found it.
  expect(alone.open(after?.old ?? Buffer.alloc(0))).toBe("secret 0");
  expect(walk.replaced).toBe(1);
});

test("walks beside each other do no harm: each row ends with the text that it had", async () => {
  await addEndpoints(300);
  const walks = Array.from({ length: 4 }, () => walkSealed(store.db, both, resealing(both)));
  const replaced = (await Promise.all(walks)).reduce((sum, walk) => sum + walk.replaced, 0);
  expect(replaced).toBe(400);
  for (const { n, sealed } of await secrets()) expect(alone.open(sealed)).toBe(`secret ${n}`);
});
