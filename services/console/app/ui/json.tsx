import type { ComponentChild } from "preact";
import { Block, Copy } from "./small.tsx";

/** JSON with every digit as it was written, laid out anew. */

/** Colours in a longer text would cost the browser too many elements. */
const COLOURED_CHARACTERS_MAX = 20_000;
const TOKENS = /"(?:[^"\\]|\\.)*"|[[\]{}:,]|[^\s[\]{}:,"]+/g;

/** Lays out the text of a JSON value. Literals stay as they are, so that no number loses a digit. */
export function layOut(text: string): string {
  let out = "";
  let depth = 0;
  let before = "";
  const line = () => `\n${"  ".repeat(depth)}`;
  for (const [token] of text.matchAll(TOKENS)) {
    if (token === "}" || token === "]") {
      depth--;
      out += before === "{" || before === "[" ? token : line() + token;
    } else {
      if (before === "{" || before === "[" || before === ",") out += line();
      out += token === ":" ? ": " : token;
      if (token === "{" || token === "[") depth++;
    }
    before = token;
  }
  return out;
}

/** The text of a member of a JSON object, as it stands there; null if the object has no such member. */
export function memberText(text: string, name: string): string | null {
  const tokens = [...text.matchAll(TOKENS)];
  const wanted = JSON.stringify(name);
  let depth = 0;
  let start: number | null = null;
  for (const [index, { 0: token, index: at }] of tokens.entries()) {
    const isName = token === wanted && depth === 1 && tokens[index + 1]?.[0] === ":";
    if (isName && /^[{,]$/.test(tokens[index - 1]?.[0] ?? "")) start = tokens[index + 2]?.index ?? null;
    if (token === "{" || token === "[") depth++;
    if (token === "}" || token === "]") depth--;
    if (start !== null && at >= start && depth === 1) return text.slice(start, at + token.length);
  }
  return null;
}

export function Json({ text, what }: { text: string; what: string }) {
  const laidOut = layOut(text);
  return (
    <div class="stack-close">
      <Block what={what}>{laidOut.length > COLOURED_CHARACTERS_MAX ? laidOut : colour(laidOut)}</Block>
      <div>
        <Copy text={laidOut} what={what} />
      </div>
    </div>
  );
}

function colour(text: string) {
  const parts: ComponentChild[] = [];
  let end = 0;
  for (const match of text.matchAll(TOKENS)) {
    const [token] = match;
    if (/^[[\]{}:,]$/.test(token)) continue;
    const kind = !token.startsWith('"')
      ? "other"
      : text[match.index + token.length] === ":"
        ? "name"
        : "text";
    parts.push(text.slice(end, match.index), <span class={`json-${kind}`}>{token}</span>);
    end = match.index + token.length;
  }
  return [...parts, text.slice(end)];
}
