import { expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { createSeal } from "../../shared/platform/seal/seal.ts";
import type { Database } from "../../shared/store/database/database.ts";
import { until } from "../../shared/store/test-support.ts";
import { createSigningSecrets } from "./signing-secrets.ts";

const SCOPE = { projectNo: 1, environment: "production" } as const;
const seal = createSeal(randomBytes(32));

/** Answers every question with a secret of its own: "secret 1", "secret 2", ... */
function startAnswering() {
  let count = 0;
  const run = async () => [{ n: 1, sealed: seal.seal(`secret ${++count}`) }];
  return { run } as unknown as Database;
}

test("signing secrets are read once, until they are forgotten", async () => {
  const secretsOf = createSigningSecrets(startAnswering(), seal);
  expect(await secretsOf(SCOPE)).toEqual(["secret 1"]);
  expect(await secretsOf(SCOPE)).toEqual(["secret 1"]);

  const briefly = createSigningSecrets(startAnswering(), seal, 20);
  await briefly(SCOPE);
  await until(async () => (await briefly(SCOPE))[0] === "secret 2");
});

test("signing secrets leave the memory although nobody asks for them again", async () => {
  const secretsOf = createSigningSecrets(startAnswering(), seal, 20);
  const kept = new WeakRef(await secretsOf(SCOPE));
  await until(async () => {
    Bun.gc(true);
    return kept.deref() === undefined;
  });
  // The cache itself is alive.
  expect(await secretsOf(SCOPE)).toEqual(["secret 2"]);
});
