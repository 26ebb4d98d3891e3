import { computed, signal } from "@preact/signals";
import { type Client, createClient } from "../../../../shared/client/client.ts";
import { ApiError } from "../../../../shared/client/errors.ts";
import type { Project } from "../../../../shared/client/project.ts";
import { isPermitted, type KeyScope, type Resource } from "../../../../shared/domain/key.ts";
import type { Environment } from "../../../../shared/domain/scope.ts";
import { watchAnswers } from "./answers.ts";
import { BASE, place } from "./place.ts";

/**
 * The visitor's session in one environment. Keys are in this tab's session storage and nowhere else: no address, log or
 * error has one. Each tab has a storage of its own, and each view takes the key of the environment in its address.
 */
export interface Session {
  environment: Environment;
  client: Client;
  project: Project;
  scope: KeyScope;
}

/** `opening`: the gateway is asked about the key that the tab has kept. `failed`: the gateway could not be asked. */
export type SessionState =
  | { kind: "closed" }
  | { kind: "opening" }
  | { kind: "failed"; error: unknown }
  | Open;
type Open = { kind: "open"; session: Session };

const CLOSED: SessionState = { kind: "closed" };
const states = {
  development: signal<SessionState>(CLOSED),
  production: signal<SessionState>(CLOSED),
} as const;

/** The environment whose key has been refused since its session was opened; null if there is none. */
export const refused = signal<Environment | null>(null);

/** The state in the environment of the address. */
export const sessionState = computed<SessionState>(() => {
  const { environment } = place.value;
  return environment === null ? CLOSED : states[environment].value;
});

/** The session of the page. Pages are shown only while there is one. */
export function useSession(): Session {
  const state = sessionState.value;
  if (state.kind !== "open") throw new Error("a page is shown without a session");
  return state.session;
}

/** Whether the session's key may do this. */
export function may(session: Session, resource: Resource, access: "read" | "write"): boolean {
  return isPermitted(session.scope, resource, access);
}

export function hasKey(environment: Environment): boolean {
  return keyOf(environment) !== null;
}

/** The environment of the last session of this tab, if its key is still there. */
export function lastEnvironment(): Environment | null {
  const last = sessionStorage.getItem(LAST_ENVIRONMENT);
  return (last === "development" || last === "production") && hasKey(last) ? last : null;
}

const reopening = new Set<Environment>();

/** Opens the session of a key that the tab has kept, unless that is under way. A state `failed` stays until it is open. */
export async function reopen(environment: Environment): Promise<void> {
  const key = keyOf(environment);
  if (key === null || reopening.has(environment)) return;
  reopening.add(environment);
  if (states[environment].value.kind === "closed") states[environment].value = { kind: "opening" };
  try {
    await open(key);
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) signOut(environment);
    else states[environment].value = { kind: "failed", error };
  } finally {
    reopening.delete(environment);
  }
}

/**
 * Opens the session of a key that was pasted. Answers its environment. Rejects with the API's error, or TypeError for
 * a text that cannot be a key; then everything stays as it was.
 */
export function signIn(pasted: string): Promise<Environment> {
  return open(pasted.trim());
}

export function signOut(environment: Environment): void {
  sessionStorage.removeItem(storageNameOf(environment));
  if (refused.value === environment) refused.value = null;
  states[environment].value = CLOSED;
}

async function open(key: string): Promise<Environment> {
  let environment: Environment | null = null;
  const client = createClient({
    baseUrl: BASE,
    apiKey: key,
    // A page asks again by itself, and shows meanwhile what is wrong.
    retriesMax: 0,
    timeoutMs: REQUEST_MS_MAX,
    fetch: watchAnswers((status) => {
      if (status === 401 && environment !== null && keyOf(environment) === key) refused.value = environment;
    }),
  });
  const project = await client.project.get();
  const scope = await findScope(client);
  ({ environment } = project);
  for (const other of ["development", "production"] as const) {
    const state = states[other].value;
    // One tab shows one project.
    if (state.kind === "open" && state.session.project.id !== project.id) signOut(other);
  }
  sessionStorage.setItem(storageNameOf(environment), key);
  sessionStorage.setItem(LAST_ENVIRONMENT, environment);
  if (refused.value === environment) refused.value = null;
  states[environment].value = { kind: "open", session: { environment, client, project, scope } };
  return environment;
}

/** The API does not tell a key its scope, so this asks for what each scope may read. */
async function findScope(client: Client): Promise<KeyScope> {
  if (await isAllowed(client.keys.list({ limit: 1 }))) return "full";
  return (await isAllowed(client.schedules.list({ limit: 1 }))) ? "read" : "jobs";
}

async function isAllowed(call: Promise<unknown>): Promise<boolean> {
  try {
    await call;
    return true;
  } catch (error) {
    if (error instanceof ApiError && error.code === "insufficient_scope") return false;
    throw error;
  }
}

/** Replaces the session's project with one that was changed here. */
export function noteProject(project: Project): void {
  const state = states[project.environment].value;
  if (state.kind !== "open") return;
  states[project.environment].value = { kind: "open", session: { ...state.session, project } };
}

const REQUEST_MS_MAX = 20_000;
const LAST_ENVIRONMENT = "jobwheel.environment";
const storageNameOf = (environment: Environment) => `jobwheel.key.${environment}`;
const keyOf = (environment: Environment) => sessionStorage.getItem(storageNameOf(environment));
