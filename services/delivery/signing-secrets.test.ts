import { expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { createSeal } from "../../shared/platform/seal/seal.ts";
import { environmentOf } from "../../shared/store/database/codes.ts";
import type { Database } from "../../shared/store/database/database.ts";
import { until } from "../../shared/store/test-support.ts";
import { CACHED_MS, createSigningSecrets, REMEMBERED_MS } from "./signing-secrets.ts";

const SCOPE = { projectNo: 1, environment: "production" } as const;
const OTHER = { projectNo: 2, environment: "development" } as const;
const seal = createSeal(randomBytes(32));

/**
 * A node whose database has one secret for each scope, and counts the statements and the scopes that they read. With
 * `projectsInUse` the node has a region, in which so many projects have had jobs.
 */
function startNode(options: { projectsInUse?: number; cachedMs?: number } = {}) {
  const answering = { statements: 0, scopes: 0, sealed: seal.seal("secret 1"), fails: false };
  const run = async (name: string, _text: string, [projects, max]: [string, number]) => {
    if (name === "list_environments_in_use") {
      if (answering.fails) throw new Error("no answer");
      const count = Math.min(max, options.projectsInUse ?? 0);
      return Array.from({ length: count }, (_, index) => ({ no: index + 1, environment: 1 }));
    }
    const count = projects.split(",").length;
    answering.statements++;
    answering.scopes += count;
    if (answering.fails) throw new Error("no answer");
    return Array.from({ length: count }, (_, index) => ({
      n: index + 1,
      sealed: Buffer.from(answering.sealed),
    }));
  };
  let now = 0;
  const secrets = createSigningSecrets({ run } as unknown as Database, seal, {
    regions: options.projectsInUse === undefined ? [] : ["us-east"],
    steadyNow: () => now,
    ...(options.cachedMs !== undefined && { cachedMs: options.cachedMs }),
  });
  const pass = (ms: number) => {
    now += ms;
  };
  return { answering, secrets, pass };
}

test("signing secrets are read once while they are kept", async () => {
  const { answering, secrets, pass } = startNode();
  expect(await secrets.of(SCOPE)).toEqual(["secret 1"]);
  pass(CACHED_MS - 1);
  expect(await secrets.of(SCOPE)).toEqual(["secret 1"]);
  expect(answering.statements).toBe(1);
});

test("a secret is read anew when it is 4 s old, also while refreshes fail", async () => {
  const { answering, secrets, pass } = startNode();
  await secrets.of(SCOPE);
  pass(CACHED_MS - 1);
  answering.fails = true;
  await expect(secrets.refresh()).rejects.toThrow("no answer");
  Object.assign(answering, { fails: false, sealed: seal.seal("secret 2") });
  pass(1);
  expect(await secrets.of(SCOPE)).toEqual(["secret 2"]);
});

test("a refresh reads all remembered secrets at once, and they are kept for as long again", async () => {
  const { answering, secrets, pass } = startNode();
  await Promise.all([secrets.of(SCOPE), secrets.of(OTHER)]);
  expect(answering).toMatchObject({ statements: 1, scopes: 2 });
  pass(CACHED_MS - 1);
  await secrets.refresh();
  expect(answering).toMatchObject({ statements: 2, scopes: 4 });
  pass(CACHED_MS - 1);
  expect(await secrets.of(SCOPE)).toEqual(["secret 1"]);
  expect(await secrets.of(OTHER)).toEqual(["secret 1"]);
  expect(answering.statements).toBe(2);
});

test("a secret that a refresh finds changed is used no longer", async () => {
  const { answering, secrets } = startNode();
  await secrets.of(SCOPE);
  answering.sealed = seal.seal("secret 2");
  await secrets.refresh();
  expect(await secrets.of(SCOPE)).toEqual(["secret 2"]);
});

test("secrets leave the memory once nobody has asked for them for a while", async () => {
  const { answering, secrets, pass } = startNode();
  const kept = new WeakRef(await secrets.of(SCOPE));
  pass(REMEMBERED_MS);
  await secrets.of(OTHER);
  await secrets.refresh();
  // The refresh has read the other one alone.
  expect(answering).toMatchObject({ statements: 3, scopes: 3 });
  await until(async () => {
    Bun.gc(true);
    return kept.deref() === undefined;
  });
});

test("the first refresh reads ahead, 200 environments in a statement, and the next one reads the same again", async () => {
  const { answering, secrets, pass } = startNode({ projectsInUse: 450 });
  answering.fails = true;
  await expect(secrets.refresh()).rejects.toThrow("no answer");
  answering.fails = false;
  await secrets.refresh();
  expect(answering).toMatchObject({ statements: 3, scopes: 450 });
  expect(await secrets.of({ projectNo: 450, environment: environmentOf(1) })).toEqual(["secret 1"]);
  expect(answering.statements).toBe(3);
  await secrets.refresh();
  expect(answering).toMatchObject({ statements: 6, scopes: 900 });
  pass(REMEMBERED_MS);
  await secrets.refresh();
  expect(answering.statements).toBe(6);
});

test("at most 4,000 environments are read ahead, and none if nothing is kept", async () => {
  const many = startNode({ projectsInUse: 10_000 });
  await many.secrets.refresh();
  expect(many.answering.scopes).toBe(4_000);
  const forgetful = startNode({ projectsInUse: 10_000, cachedMs: 0 });
  await forgetful.secrets.refresh();
  expect(forgetful.answering.scopes).toBe(0);
});
