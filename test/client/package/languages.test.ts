import { expect, setDefaultTimeout, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { askVerifier, buildGoVerifier, exampleOf, VERDICTS } from "./verifiers.ts";

setDefaultTimeout(600_000);

/**
 * The examples for other languages, where this machine has the runtime: a test without its runtime counts as skipped.
 * `languages.long.test.ts` runs those for Go and PHP on Debian's packages.
 */
const hasAll = (...programs: string[]) => programs.every((program) => Bun.which(program) !== null);

test.skipIf(!hasAll("python3"))("verify.py verifies what the service signs, and nothing else", () => {
  expect(askVerifier(["python3", exampleOf("verify.py")])).toEqual(VERDICTS);
});

test.skipIf(!hasAll("php"))("verify.php verifies what the service signs, and nothing else", () => {
  expect(askVerifier(["php", exampleOf("verify.php")])).toEqual(VERDICTS);
});

test.skipIf(!hasAll("go"))("verify.go verifies what the service signs, and nothing else", () => {
  const folder = mkdtempSync(join(tmpdir(), "verify-go-"));
  try {
    expect(askVerifier([buildGoVerifier("go", folder)])).toEqual(VERDICTS);
  } finally {
    rmSync(folder, { recursive: true });
  }
});

test.skipIf(!hasAll("bash", "openssl", "od"))(
  "verify.sh verifies what the service signs, and nothing else",
  () => {
    expect(askVerifier(["bash", exampleOf("verify.sh")])).toEqual(VERDICTS);
  },
);
