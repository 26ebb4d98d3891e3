import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { listSigningSecrets } from "../../../shared/store/resources/secrets.ts";
import { clientOf } from "../../support/client.ts";
import { readRefusal, startTestGateway, type TestGateway, type TestProject } from "../../support/gateway.ts";

let gateway: TestGateway;
let mate: { port: number; stop(): Promise<void> };
beforeAll(async () => {
  gateway = await startTestGateway();
  mate = await gateway.startMate();
});
afterAll(async () => {
  await mate.stop();
  await gateway.stop();
});

const DAY_MS = 86_400_000;
const SECRET = /^whsec_[A-Za-z0-9+/]{43}=$/;
const ROTATE = "/v2/project/signing-secret/rotate";

/** The sealed secrets that sign, the newest first. */
async function sealedOf({ no }: TestProject, environment: "development" | "production" = "production") {
  const [sealed] = await listSigningSecrets(gateway.db, [{ projectNo: no, environment }]);
  return sealed ?? [];
}

describe("GET /v2/project/signing-secret", () => {
  test("shows the secret masked, of the key's environment", async () => {
    const project = await gateway.addProject();
    const shown = await clientOf(gateway, project.production).project.signingSecret();
    expect(shown).toEqual({
      secret: expect.stringMatching(/^whsec_\*{4}[A-Za-z0-9+/]{3}=$/),
      previous_expires_at: null,
    });
    expect(await clientOf(gateway, project.development).project.signingSecret()).not.toEqual(shown);
  });

  test("takes no query parameter, and keys of scope read; those of scope jobs get neither this nor a rotation", async () => {
    const project = await gateway.addProject();
    const [read, jobs] = [
      await gateway.addKey(project, { scope: "read" }),
      await gateway.addKey(project, { scope: "jobs" }),
    ];
    const get = (key: string, query = "") =>
      gateway.call("GET", `/v2/project/signing-secret${query}`, { key });
    readRefusal(await get(project.production, "?a=1"), "invalid_request", "a");
    expect((await get(read.key)).status).toBe(200);
    readRefusal(await get(jobs.key), "insufficient_scope");
    for (const { key } of [read, jobs]) {
      readRefusal(await gateway.call("POST", ROTATE, { key }), "insufficient_scope");
    }
  });
});

describe("POST /v2/project/signing-secret/rotate", () => {
  test("shows the new secret this once, and the one before signs for 24 hours more", async () => {
    const project = await gateway.addProject();
    const { signingSecret, rotateSigningSecret } = clientOf(gateway, project.production).project;
    const [before] = await sealedOf(project);
    const startedAt = Date.now();
    const { result: rotated, answer } = await rotateSigningSecret().withAnswer();
    expect([answer.status, SECRET.test(rotated.secret)]).toEqual([200, true]);
    const endsAt = Date.parse(rotated.previous_expires_at ?? "");
    expect(Math.abs(endsAt - startedAt - DAY_MS)).toBeLessThan(60_000);
    const masked = `whsec_****${rotated.secret.slice(-4)}`;
    expect(await signingSecret()).toEqual({ ...rotated, secret: masked });
    const now = await sealedOf(project);
    expect(now.length).toBe(2);
    expect(now[1]).toEqual(before as Buffer);
    expect(await sealedOf(project, "development")).toHaveLength(1);
  });

  test("ends the older of two secrets before it", async () => {
    const project = await gateway.addProject();
    const { rotateSigningSecret } = clientOf(gateway, project.production).project;
    const [first] = await sealedOf(project);
    await rotateSigningSecret();
    const [second] = await sealedOf(project);
    await rotateSigningSecret();
    const present = await sealedOf(project);
    expect(present.length).toBe(2);
    expect(present[1]).toEqual(second as Buffer);
    expect(present).not.toContainEqual(first as Buffer);
  });

  test("many times at once leaves two secrets, of which the one that is shown last signs", async () => {
    const project = await gateway.addProject();
    const answers = await Promise.all(
      Array.from({ length: 10 }, (_, n) =>
        gateway.call("POST", ROTATE, {
          key: project.production,
          port: n % 2 === 0 ? gateway.port : mate.port,
        }),
      ),
    );
    expect(answers.map(({ status }) => status)).toEqual(Array.from({ length: 10 }, () => 200));
    expect(await sealedOf(project)).toHaveLength(2);
    const { secret } = await clientOf(gateway, project.production).project.signingSecret();
    const ends = answers.map(({ text }) => (JSON.parse(text) as { secret: string }).secret.slice(-4));
    expect(ends).toContain(secret.slice(-4));
  });

  test("is replayed with the whole secret, kept sealed, and once for many requests at once", async () => {
    const project = await gateway.addProject();
    const rotate = (port: number) =>
      gateway.call("POST", ROTATE, { key: project.production, port, headers: { "Idempotency-Key": "once" } });
    const answers = await Promise.all(
      Array.from({ length: 10 }, (_, n) => rotate(n % 2 === 0 ? gateway.port : mate.port)),
    );
    expect(new Set(answers.map(({ status, text }) => `${status} ${text}`)).size).toBe(1);
    await gateway.call("POST", ROTATE, { key: project.production });
    const later = await rotate(gateway.port);
    expect([later.text, later.headers.get("idempotent-replayed")]).toEqual([answers[0]?.text ?? "", "true"]);
    expect(await sealedOf(project)).toHaveLength(2);
    for (const { answer } of await gateway.query<{ answer: Buffer | null }>(
      "SELECT answer FROM idempotency_keys",
    )) {
      expect(answer?.includes("whsec_")).toBe(false);
    }
  });

  test("ignores a body, and a refused one leaves no trace", async () => {
    const project = await gateway.addProject();
    const rotate = (query: string) =>
      gateway.call("POST", `${ROTATE}${query}`, { key: project.production, body: "no JSON" });
    const before = await gateway.countRows();
    readRefusal(await rotate("?a=1"), "invalid_request", "a");
    expect(await gateway.countRows()).toEqual(before);
    expect((await rotate("")).status).toBe(200);
  });
});
