import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import { ApiError, ConnectionError } from "../../../../shared/client/errors.ts";
import type { Resource } from "../../../../shared/domain/key.ts";
import { live } from "../data/preferences.ts";
import type { Query } from "../data/query.ts";
import { may, type Session, useSession } from "../data/session.ts";
import { Link } from "./small.tsx";
import { now } from "./time.ts";

/** The parts that pages are made of. */

/** The head of a page. `trail` leads back to the list. */
export function PageHead(props: {
  title: string;
  isCode?: boolean;
  trail?: { href: string; label: string };
  beside?: ComponentChildren;
  children?: ComponentChildren;
  actions?: ComponentChildren;
}) {
  useEffect(() => {
    document.title = `${props.title} · Jobwheel`;
  }, [props.title]);
  return (
    <div class="page-head">
      <div class="titles">
        {props.trail && (
          <div class="trail">
            <Link href={props.trail.href}>{`← ${props.trail.label}`}</Link>
          </div>
        )}
        <div class="title-line">
          <h1 class="break">{props.isCode ? <code>{props.title}</code> : props.title}</h1>
          {props.beside}
        </div>
        {props.children && <p>{props.children}</p>}
      </div>
      {props.actions && <div class="buttons">{props.actions}</div>}
    </div>
  );
}

/** A page with a form, for keys that may send it. `what` says what the form does, such as `create jobs`. */
export function FormPage(props: {
  title: string;
  trail: { href: string; label: string };
  about?: string;
  resource: Resource;
  what: string;
  children: ComponentChildren;
}) {
  const session = useSession();
  return (
    <>
      <PageHead title={props.title} trail={props.trail}>
        {props.about}
      </PageHead>
      {may(session, props.resource, "write") ? (
        props.children
      ) : (
        <Empty title="Not with this key">
          <ScopeNote session={session} what={props.what} />
        </Empty>
      )}
    </>
  );
}

export function Card(props: { title?: string; head?: ComponentChildren; children: ComponentChildren }) {
  return (
    <section class="card" aria-label={props.title}>
      {props.head ? (
        <div class="card-head">
          {props.title && <h2>{props.title}</h2>}
          {props.head}
        </div>
      ) : (
        props.title && <h2>{props.title}</h2>
      )}
      {props.children}
    </section>
  );
}

/** A note for a list or a page that has nothing to show: why, and what can be done. */
export function Empty(props: { title: string; children?: ComponentChildren; action?: ComponentChildren }) {
  return (
    <div class="empty">
      <h2>{props.title}</h2>
      {props.children && <p>{props.children}</p>}
      {props.action}
    </div>
  );
}

/** A placeholder while the first answer is on its way. */
export function Loading({ what }: { what: string }) {
  return (
    <div class="bones" role="status" aria-label={`Loading ${what}`}>
      <div class="bone" />
      <div class="bone" />
      <div class="bone" />
      <div class="bone" />
    </div>
  );
}

/** A note in place of data that is not loaded yet: that it loads, or why it failed. */
export function NotYet({ query, what }: { query: Query<unknown>; what: string }) {
  const { error, reload } = query;
  return error === undefined ? <Loading what={what} /> : <Trouble error={error} onRetry={reload} />;
}

/** A sentence for any error, without a secret in it: the client's errors quote none. */
export function errorText(error: unknown): string {
  if (error instanceof ApiError) return error.message;
  if (error instanceof ConnectionError) return "No answer came from the gateway.";
  return error instanceof Error ? error.message : "Something went wrong.";
}

/** The text of an error, and a button to try again. */
export function Trouble({ error, onRetry }: { error: unknown; onRetry?: () => void }) {
  if (error === undefined) return null;
  const requestId = error instanceof ApiError ? error.requestId : null;
  return (
    <div class="trouble" role="alert">
      <div>{errorText(error)}</div>
      {error instanceof ApiError && error.details.length > 0 && (
        <ul>
          {error.details.map((detail) => (
            <li key={detail.index}>{`${detail.index}: ${detail.message}`}</li>
          ))}
        </ul>
      )}
      {requestId !== null && <div class="small mono">{requestId}</div>}
      {onRetry && (
        <div>
          <button type="button" class="button compact" onClick={onRetry}>
            Try again
          </button>
        </div>
      )}
    </div>
  );
}

/** A figure with its name, and a word on how to read it. */
export function Stat(props: { name: string; note?: ComponentChildren; children: ComponentChildren }) {
  return (
    <div class="stat">
      <dt>{props.name}</dt>
      <dd>{props.children}</dd>
      {props.note && <dd class="note">{props.note}</dd>}
    </div>
  );
}

/** Says why a key may not do what the page is for. */
export function ScopeNote({ session, what }: { session: Session; what: string }) {
  return <span class="note">{`A key of scope ${session.scope} cannot ${what}.`}</span>;
}

/** Turns live updates on and off, and says how old the shown data is. */
export function Live({
  loadedAt,
  isLoading,
  reload,
}: {
  loadedAt: number | null;
  isLoading: boolean;
  reload: () => void;
}) {
  const isOn = live.value === "on";
  const seconds = loadedAt === null ? null : Math.max(0, Math.round((now.value - loadedAt) / 1_000));
  return (
    <span class="buttons">
      <span class="note number" aria-live="off">
        {seconds === null ? "" : seconds < 2 ? "up to date" : `${seconds} s old`}
      </span>
      <button
        type="button"
        class="button compact"
        aria-pressed={isOn}
        onClick={() => {
          live.value = isOn ? "off" : "on";
        }}
      >
        <span class={isOn ? "live is-on" : "live"}>Live</span>
      </button>
      <button
        type="button"
        class="button compact"
        onClick={reload}
        disabled={isLoading && loadedAt === null}
        data-key="r"
      >
        Reload
      </button>
    </span>
  );
}

/** How much of the whole `part` is. A meter with `isBound` turns yellow at 80 % and red at 100 %. */
export function Meter({ part, whole, isBound = false }: { part: number; whole: number; isBound?: boolean }) {
  const percent = whole === 0 ? 0 : Math.min(100, (part / whole) * 100);
  const tone = isBound && percent >= 100 ? " bad" : isBound && percent >= 80 ? " warn" : "";
  return (
    <div class={`meter${tone}`} aria-hidden="true">
      <div style={{ width: `${percent}%` }} />
    </div>
  );
}
