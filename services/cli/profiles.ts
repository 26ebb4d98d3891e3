import { mkdirSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { homedir } from "node:os";
import { dirname, join } from "node:path";
import { UsageError } from "./command.ts";

/** Keys by the names of their profiles, in `$XDG_CONFIG_HOME/jobwheel/profiles.json`, which only its owner may read. */
export interface Profile {
  url: string;
  key: string;
}

export const DEFAULT_PROFILE = "default";
const DEFAULT_URL = "http://127.0.0.1:8080";

export function profilesFile(environment: NodeJS.ProcessEnv): string {
  return join(environment.XDG_CONFIG_HOME || join(homedir(), ".config"), "jobwheel", "profiles.json");
}

/** JOBWHEEL_URL and JOBWHEEL_KEY win over the profile. The key is undefined if there is none. Throws UsageError. */
export function findProfile(
  name: string,
  environment: NodeJS.ProcessEnv,
): { url: string; key: string | undefined } {
  const { url, key } = readProfiles(environment)[name] ?? {};
  return {
    url: environment.JOBWHEEL_URL || url || DEFAULT_URL,
    key: environment.JOBWHEEL_KEY || key,
  };
}

export function saveProfile(name: string, profile: Profile, environment: NodeJS.ProcessEnv): void {
  const file = profilesFile(environment);
  const text = `${JSON.stringify({ ...readProfiles(environment), [name]: profile }, null, 2)}\n`;
  mkdirSync(dirname(file), { recursive: true, mode: 0o700 });
  // The text goes to a file of its own first: a reader, or a process that dies here, finds a whole file.
  const next = `${file}.${process.pid}`;
  writeFileSync(next, text, { mode: 0o600 });
  renameSync(next, file);
}

function readProfiles(environment: NodeJS.ProcessEnv): Record<string, Profile> {
  const file = profilesFile(environment);
  let text: string;
  try {
    text = readFileSync(file, "utf8");
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return {};
    throw error;
  }
  try {
    return JSON.parse(text);
  } catch {
    throw new UsageError(`${file} is no JSON: mend it or delete it, and log in again`);
  }
}
