import { randomBytes } from "node:crypto";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { signHeaders } from "../../../services/delivery/sign.ts";
import { makeSecret } from "../../../shared/domain/signing.ts";
import { CHECKOUT } from "../../support/service-process.ts";

const [secret, newer, foreign] = [makeSecret(randomBytes), makeSecret(randomBytes), makeSecret(randomBytes)];
const BODY = '{"name":"Žofie","n":9007199254740993}';
const LONG_AGO_MS = 6 * 60_000;

/** The verdict that an example must give on each request. */
export const VERDICTS = {
  "a request of the service": true,
  "a request during a rotation": true,
  "another body": false,
  "another secret": false,
  "another id": false,
  "no signature": false,
  "a time long ago": false,
};
export type Verdicts = Record<keyof typeof VERDICTS, boolean>;

/** Asks an example of `shared/client/examples` for its verdicts. `command` runs the example, without its arguments. */
export function askVerifier(command: readonly string[], environment: Record<string, string> = {}): Verdicts {
  const sign = (secrets: string[], sentAt = Date.now()) =>
    signHeaders(BODY, { id: "run_1", sentAt, secrets });
  const { "webhook-signature": _, ...unsigned } = sign([secret]);
  const requests: Record<keyof Verdicts, { headers: Record<string, string>; body?: string }> = {
    "a request of the service": { headers: sign([secret]) },
    "a request during a rotation": { headers: sign([newer, secret]) },
    "another body": { headers: sign([secret]), body: `${BODY} ` },
    "another secret": { headers: sign([foreign]) },
    "another id": { headers: { ...sign([secret]), "webhook-id": "run_2" } },
    "no signature": { headers: unsigned },
    "a time long ago": { headers: sign([secret], Date.now() - LONG_AGO_MS) },
  };
  const folder = mkdtempSync(join(tmpdir(), "verifier-"));
  try {
    const verdicts = Object.entries(requests).map(([name, { headers, body = BODY }]) => {
      const lines = Object.entries(headers).map(([header, value]) => `${header}: ${value}\r\n`);
      writeFileSync(join(folder, "headers"), lines.join(""));
      writeFileSync(join(folder, "body"), body);
      const { exitCode, stdout, stderr } = Bun.spawnSync([...command, "headers", "body"], {
        cwd: folder,
        env: { ...environment, PATH: process.env.PATH ?? "", SECRET: secret },
      });
      const said = stdout.toString().trim();
      // Only a clear yes or no is a verdict.
      if (exitCode > 1 || stderr.length > 0) throw new Error(`${command.join(" ")}: ${exitCode} ${stderr}`);
      return [name, exitCode === 0 && said === "verified"];
    });
    return Object.fromEntries(verdicts) as Verdicts;
  } finally {
    rmSync(folder, { recursive: true });
  }
}

export const exampleOf = (name: string) => join(CHECKOUT, "shared/client/examples", name);

/** Builds verify.go in the folder. Answers the path of the program. */
export function buildGoVerifier(
  go: string,
  folder: string,
  environment: Record<string, string> = {},
): string {
  const program = join(folder, "verify");
  const common = {
    PATH: process.env.PATH ?? "",
    HOME: folder,
    GOCACHE: join(folder, "cache"),
    CGO_ENABLED: "0",
  };
  const command = [go, "build", "-o", program, exampleOf("verify.go")];
  const { exitCode, stderr } = Bun.spawnSync(command, { env: { ...common, ...environment } });
  if (exitCode !== 0) throw new Error(`go build ended with ${exitCode}: ${stderr}`);
  return program;
}
