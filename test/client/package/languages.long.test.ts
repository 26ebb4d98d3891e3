import { expect, setDefaultTimeout, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { unpackRuntime } from "./debian-runtime.ts";
import { askVerifier, buildGoVerifier, exampleOf, VERDICTS } from "./verifiers.ts";

/** The examples for languages that few machines have, on the runtimes of Debian's packages. */
setDefaultTimeout(600_000);

test("verify.php verifies what the service signs, and nothing else, on Debian's PHP", () => {
  const { find, environment } = unpackRuntime("php-cli");
  // -n keeps this PHP from looking for the settings of an installed PHP.
  const command = [find("usr/bin/php8*"), "-n", exampleOf("verify.php")];
  expect(askVerifier(command, environment)).toEqual(VERDICTS);
});

test("verify.go verifies what the service signs, and nothing else, on Debian's Go", () => {
  const { find } = unpackRuntime("golang-go", /^(?:gcc|g\+\+|lib|cpp|binutils|make|pkg)/);
  const folder = mkdtempSync(join(tmpdir(), "verify-go-"));
  try {
    const root = find("usr/lib/go-1.*");
    expect(askVerifier([buildGoVerifier(join(root, "bin/go"), folder, { GOROOT: root })])).toEqual(VERDICTS);
  } finally {
    rmSync(folder, { recursive: true });
  }
});
