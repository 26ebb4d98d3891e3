import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

export interface Certificate {
  key: string;
  cert: string;
}

/** A certificate authority of the test's own. Only processes that are told to do so trust it. */
export interface Authority {
  cert: string;
  /** The path of `cert`, for NODE_EXTRA_CA_CERTS. */
  certPath: string;
  /** `names` are as in subjectAltName, such as `DNS:a.example`; `days` may be negative. */
  issue(names: string, days?: number): Certificate;
  /** A self-signed certificate. */
  selfSigned(names: string): Certificate;
  remove(): void;
}

export function makeAuthority(): Authority {
  const folder = mkdtempSync(join(tmpdir(), "authority-"));
  const openssl = (...args: string[]) => execFileSync("openssl", args, { cwd: folder, stdio: "pipe" });
  const read = (name: string) => readFileSync(join(folder, name), "utf8");
  const newKey = () => ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
  openssl("req", "-x509", ...newKey(), "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test authority");
  let issued = 0;
  return {
    cert: read("ca.pem"),
    certPath: join(folder, "ca.pem"),
    issue(names, days = 1) {
      const name = `leaf${issued++}`;
      writeFileSync(join(folder, `${name}.ext`), `subjectAltName=${names}\n`);
      openssl("req", ...newKey(), "-keyout", `${name}.key`, "-out", `${name}.csr`, "-subj", "/CN=leaf");
      const signing = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", String(days)];
      openssl(
        "x509",
        "-req",
        "-in",
        `${name}.csr`,
        ...signing,
        "-extfile",
        `${name}.ext`,
        "-out",
        `${name}.pem`,
      );
      return { key: read(`${name}.key`), cert: read(`${name}.pem`) };
    },
    selfSigned(names) {
      const name = `own${issued++}`;
      const extension = ["-addext", `subjectAltName=${names}`];
      openssl(
        "req",
        "-x509",
        ...newKey(),
        "-keyout",
        `${name}.key`,
        "-out",
        `${name}.pem`,
        "-subj",
        "/CN=own",
        ...extension,
      );
      return { key: read(`${name}.key`), cert: read(`${name}.pem`) };
    },
    remove: () => rmSync(folder, { recursive: true, force: true }),
  };
}
