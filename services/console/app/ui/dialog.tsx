import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef } from "preact/hooks";
import type { Action } from "../data/action.ts";
import { Trouble } from "./page.tsx";

/** A dialog above the page. The browser keeps the focus in it, and gives it back at its end. */
export function Dialog(props: { title: string; onClose?: () => void; children: ComponentChildren }) {
  const element = useRef<HTMLDialogElement>(null);
  const titleId = useId();
  useEffect(() => {
    const dialog = element.current;
    dialog?.showModal();
    return () => dialog?.close();
  }, []);
  return (
    <dialog
      ref={element}
      aria-labelledby={titleId}
      onCancel={(event) => {
        event.preventDefault();
        props.onClose?.();
      }}
    >
      <div class="dialog-body">
        <h2 id={titleId}>{props.title}</h2>
        {props.children}
      </div>
    </dialog>
  );
}

/** Asks before something is done that cannot be taken back. */
export function Confirm(props: {
  title: string;
  children: ComponentChildren;
  /** The text of the button, such as `Cancel the job`. */
  verb: string;
  isDanger?: boolean;
  action: Action<[]>;
  onClose: () => void;
}) {
  return (
    <Dialog title={props.title} onClose={props.onClose}>
      <div>{props.children}</div>
      <Trouble error={props.action.error} />
      <div class="buttons">
        <button type="button" class="button" onClick={props.onClose}>
          Back
        </button>
        <button
          type="button"
          class={props.isDanger ? "button danger" : "button first"}
          disabled={props.action.isBusy}
          onClick={() => props.action.run()}
        >
          {props.verb}
        </button>
      </div>
    </Dialog>
  );
}

const toasts = signal<readonly { id: number; text: string }[]>([]);
const TOAST_MS = 5_000;
let toastsMade = 0;

/** Tells in the corner that something was done. */
export function tell(text: string): void {
  const id = ++toastsMade;
  toasts.value = [...toasts.value, { id, text }];
  setTimeout(() => {
    toasts.value = toasts.value.filter((toast) => toast.id !== id);
  }, TOAST_MS);
}

export function Toasts() {
  return (
    <div class="toasts" role="status">
      {toasts.value.map(({ id, text }) => (
        <div class="toast break" key={id}>
          {text}
        </div>
      ))}
    </div>
  );
}
