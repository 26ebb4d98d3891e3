import { join } from "node:path";

export interface AdminAnswer {
  code: number;
  stdout: string;
  stderr: string;
}

/** Runs the operators' command line on one cell. */
export async function runAdmin(databaseUrl: string, ...words: string[]): Promise<AdminAnswer> {
  const program = join(import.meta.dir, "..", "..", "services", "admin", "main.ts");
  const child = Bun.spawn([process.execPath, program, ...words], {
    env: { PATH: process.env.PATH ?? "", DATABASE_URL: databaseUrl },
    stdout: "pipe",
    stderr: "pipe",
  });
  const [stdout, stderr, code] = await Promise.all([child.stdout.text(), child.stderr.text(), child.exited]);
  return { code, stdout, stderr };
}

/** Runs the command line with `--json`, and expects it to succeed. */
export async function askAdmin<T>(databaseUrl: string, ...words: string[]): Promise<T> {
  const { code, stdout, stderr } = await runAdmin(databaseUrl, ...words, "--json");
  if (code !== 0) throw new Error(`admin ${words.join(" ")}: ${stderr}`);
  return JSON.parse(stdout) as T;
}
