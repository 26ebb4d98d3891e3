import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { goTo, hrefOf, place } from "../data/place.ts";
import { PAGES } from "../pages/all.ts";
import { Dialog } from "../ui/dialog.tsx";

/** The keys of the console. They are off while one types. */

export const isHelpOpen = signal(false);

/** The letters that act on the page's element with that `data-key`. Inputs get the cursor; other elements are clicked. */
const ELEMENT_KEYS: Record<string, string> = { "/": "Search", c: "Create", r: "Reload" };

const CHORD_MS = 1_200;
let chordAt = Number.NEGATIVE_INFINITY;

function act(event: KeyboardEvent): void {
  if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
  if (document.querySelector("dialog[open]") !== null) return;
  const { key } = event;
  const isSecond = event.timeStamp - chordAt < CHORD_MS;
  chordAt = Number.NEGATIVE_INFINITY;
  if (isSecond) {
    const page = PAGES.find((one) => one.key === key);
    if (page !== undefined) goTo(hrefOf(page.name));
    return;
  }
  if (key === "g") chordAt = event.timeStamp;
  else if (key === "?") isHelpOpen.value = true;
  else if (key === "j" || key === "k") moveFocus(key === "j" ? 1 : -1);
  else if (key === "u") goUp();
  else if (key in ELEMENT_KEYS) {
    const element = document.querySelector<HTMLElement>(`[data-key="${key}"]`);
    if (element === null) return;
    if (element instanceof HTMLInputElement) element.focus();
    else element.click();
    event.preventDefault();
  }
}

function isTyping(target: EventTarget | null): boolean {
  return (
    target instanceof HTMLElement &&
    (target.isContentEditable || ["INPUT", "TEXTAREA", "SELECT"].includes(target.tagName))
  );
}

function moveFocus(by: number): void {
  const links = [...document.querySelectorAll<HTMLElement>(".row-link")];
  const at = links.indexOf(document.activeElement as HTMLElement);
  const next = links[at < 0 ? 0 : at + by];
  next?.focus();
  next?.scrollIntoView({ block: "nearest" });
}

function goUp(): void {
  const { page, rest } = place.value;
  if (page !== null && rest.length > 0) goTo(hrefOf(page, rest.slice(0, -1)));
}

export function useKeys(): void {
  useEffect(() => {
    addEventListener("keydown", act);
    return () => removeEventListener("keydown", act);
  }, []);
}

export function KeysHelp() {
  if (!isHelpOpen.value) return null;
  const close = () => {
    isHelpOpen.value = false;
  };
  return (
    <Dialog title="Keys" onClose={close}>
      <dl class="keys">
        {PAGES.map(({ key, title }) => (
          <Entry key={key} keys={["g", key]} what={title} />
        ))}
        <Entry keys={["j"]} what="Next row" />
        <Entry keys={["k"]} what="Row before" />
        <Entry keys={["Enter"]} what="Open the row" />
        <Entry keys={["u"]} what="Up, from one thing to its list" />
        {Object.entries(ELEMENT_KEYS).map(([key, what]) => (
          <Entry key={key} keys={[key]} what={what} />
        ))}
        <Entry keys={["?"]} what="This list" />
      </dl>
      <div class="buttons">
        <button type="button" class="button" onClick={close}>
          Close
        </button>
      </div>
    </Dialog>
  );
}

function Entry({ keys, what }: { keys: readonly string[]; what: string }) {
  return (
    <>
      <dt>
        {keys.map((key, index) => (
          <span key={key}>
            {index > 0 && " "}
            <kbd>{key}</kbd>
          </span>
        ))}
      </dt>
      <dd>{what}</dd>
    </>
  );
}
