import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { goTo } from "../data/place.ts";
import { timeStyle } from "../data/preferences.ts";
import { instantText, localText, now, relativeText, utcText } from "./time.ts";

/** The smallest parts: links, instants, states, ids, tags. */

/** A link within the console. It is an ordinary one: it can be copied, and opened in another tab. */
export function Link(props: {
  href: string;
  class?: string;
  children: ComponentChildren;
  isCurrent?: boolean;
  label?: string;
  title?: string;
}) {
  return (
    <a
      href={props.href}
      class={props.class}
      aria-current={props.isCurrent ? "page" : undefined}
      aria-label={props.label}
      title={props.title}
      onClick={(event) => {
        if (event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
        event.preventDefault();
        goTo(props.href);
      }}
    >
      {props.children}
    </a>
  );
}

/** An instant as the visitor likes to see it. Pointing at it shows the other ways. */
export function Time({ at, otherwise = "–" }: { at: string | null; otherwise?: string }) {
  if (at === null) return <span class="muted">{otherwise}</span>;
  const instant = new Date(at);
  const style = timeStyle.value;
  const nowMs = style === "relative" ? now.value : 0;
  const title = `${utcText(instant)}\n${localText(instant)} here\n${relativeText(instant, now.peek())}`;
  return (
    <time dateTime={at} title={title} class="number nowrap">
      {instantText(instant, style, nowMs)}
    </time>
  );
}

export type Tone = "good" | "bad" | "warn" | "active" | "idle";

const TONES: Record<string, Tone> = {
  succeeded: "good",
  done: "good",
  fired: "good",
  enabled: "good",
  active: "good",
  backfilled: "good",
  failed: "bad",
  timed_out: "bad",
  down: "bad",
  running: "active",
  counting: "active",
  pending: "active",
  queued: "idle",
  waiting: "warn",
  paused: "warn",
  disabled: "warn",
  aborted: "warn",
  parked: "warn",
  missed_outage: "warn",
  skipped_quota: "warn",
  skipped_overlap: "warn",
};

export function toneOf(status: string): Tone {
  return TONES[status] ?? "idle";
}

/** A word of the API as people read it. */
export function wordsOf(word: string): string {
  return word.replaceAll("_", " ");
}

/** A status, in the API's own word. */
export function Status({ status }: { status: string }) {
  return <span class={`badge ${toneOf(status)}`}>{wordsOf(status)}</span>;
}

export function Tags({ tags, hrefOf }: { tags: readonly string[]; hrefOf?: (tag: string) => string }) {
  return (
    <span class="tags">
      {tags.map((tag) =>
        hrefOf === undefined ? (
          <span key={tag} class="tag" title={tag}>
            {tag}
          </span>
        ) : (
          <Link key={tag} class="tag" href={hrefOf(tag)} title={tag}>
            {tag}
          </Link>
        ),
      )}
    </span>
  );
}

/** A button that copies the text. There is no button where the browser gives no clipboard, as without TLS. */
export function Copy({ text, what }: { text: string; what: string }) {
  const [isCopied, setIsCopied] = useState(false);
  if (navigator.clipboard === undefined) return null;
  return (
    <button
      type="button"
      class="button compact quiet"
      aria-label={`Copy ${what}`}
      onClick={() => {
        navigator.clipboard.writeText(text).then(
          () => {
            setIsCopied(true);
            setTimeout(() => setIsCopied(false), COPIED_SHOWN_MS);
          },
          () => undefined,
        );
      }}
    >
      {isCopied ? "Copied" : "Copy"}
    </button>
  );
}

const COPIED_SHOWN_MS = 1_500;

/** A whole id, with a button to copy it. */
export function Id({ id }: { id: string }) {
  return (
    <span class="break">
      <code>{id}</code> <Copy text={id} what={id} />
    </span>
  );
}

/** An id in a list, of which a narrow screen shows the end. */
export function ListedId({ id }: { id: string }) {
  return (
    <code class="tail" title={id}>
      {id}
    </code>
  );
}

/** A secret that is shown this once. */
export function Secret({ text, children }: { text: string; children: ComponentChildren }) {
  return (
    <div class="reveal" role="status">
      <div>{children}</div>
      <div class="secret">
        <code>{text}</code>
        <Copy text={text} what="the secret" />
      </div>
    </div>
  );
}

/** Text of many lines as it is, in a monospaced font. */
export function Block({ what, children }: { what: string; children: ComponentChildren }) {
  return (
    <section class="code" aria-label={what} {...SCROLLABLE}>
      {children}
    </section>
  );
}

/** An element that scrolls by itself must be reachable by the keyboard. */
export const SCROLLABLE = { tabIndex: 0 } as const;
