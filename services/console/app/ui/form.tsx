import type { ComponentChildren } from "preact";
import { useId, useState } from "preact/hooks";
import type { Action } from "../data/action.ts";
import { place, setFilters } from "../data/place.ts";
import { Trouble } from "./page.tsx";
import { Link } from "./small.tsx";

/** Fields of forms. Each has a label, and may have a hint and a fault, which are tied to it. */

interface FieldProps {
  label: string;
  hint?: ComponentChildren;
  fault?: string | undefined;
}

/** Ties a control to its label, hint and fault. */
function Field(
  props: FieldProps & {
    class?: string;
    children: (tied: {
      id: string;
      "aria-describedby": string | undefined;
      "aria-invalid": boolean;
    }) => ComponentChildren;
  },
) {
  const id = useId();
  const described = [props.hint && `${id}-hint`, props.fault && `${id}-fault`].filter(Boolean).join(" ");
  return (
    <div class={props.class ? `field ${props.class}` : "field"}>
      <label for={id}>{props.label}</label>
      {props.children({
        id,
        "aria-describedby": described || undefined,
        "aria-invalid": props.fault !== undefined,
      })}
      {props.hint && (
        <div class="hint" id={`${id}-hint`}>
          {props.hint}
        </div>
      )}
      {props.fault && (
        <div class="fault" id={`${id}-fault`}>
          {props.fault}
        </div>
      )}
    </div>
  );
}

export interface TextProps extends FieldProps {
  value: string;
  onInput: (value: string) => void;
  /** Called when the cursor leaves the field. */
  onLeave?: () => void;
  type?: "text" | "url" | "search" | "number" | "datetime-local" | "password" | "month";
  placeholder?: string;
  isRequired?: boolean;
  isMono?: boolean;
  class?: string;
  min?: number;
  max?: number;
  list?: readonly string[];
  /** The letter that puts the cursor here. */
  dataKey?: string;
  hasFocus?: boolean;
}

export function TextField(props: TextProps) {
  const listId = useId();
  return (
    <Field {...props}>
      {(tied) => (
        <>
          <input
            {...tied}
            {...({ type: props.type ?? "text" } as { type: "text" })}
            value={props.value}
            placeholder={props.placeholder}
            required={props.isRequired}
            class={props.isMono ? "mono" : undefined}
            min={props.min}
            max={props.max}
            list={props.list ? listId : undefined}
            autocomplete="off"
            spellcheck={false}
            step={props.type === "datetime-local" ? 1 : undefined}
            data-key={props.dataKey}
            autofocus={props.hasFocus}
            onInput={(event) => props.onInput(event.currentTarget.value)}
            onBlur={props.onLeave}
          />
          {props.list && (
            <datalist id={listId}>
              {props.list.map((value) => (
                <option key={value} value={value} />
              ))}
            </datalist>
          )}
        </>
      )}
    </Field>
  );
}

export function AreaField(props: FieldProps & { value: string; onInput: (value: string) => void }) {
  return (
    <Field {...props}>
      {(tied) => (
        <textarea
          {...tied}
          class="mono"
          rows={8}
          spellcheck={false}
          autocomplete="off"
          value={props.value}
          onInput={(event) => props.onInput(event.currentTarget.value)}
        />
      )}
    </Field>
  );
}

/** Values with the texts that are shown for them. */
type Options = readonly (readonly [value: string, shown: string])[];

export function SelectField(
  props: FieldProps & {
    value: string;
    onChange: (value: string) => void;
    options: Options;
    class?: string;
  },
) {
  return (
    <Field {...props}>
      {(tied) => (
        <select {...tied} value={props.value} onChange={(event) => props.onChange(event.currentTarget.value)}>
          {props.options.map(([value, shown]) => (
            <option key={value} value={value} selected={value === props.value}>
              {shown}
            </option>
          ))}
        </select>
      )}
    </Field>
  );
}

/** Options of a filter: all of them first, then each word. */
export function optionsOf(words: readonly string[], all?: string): Options {
  const each = words.map((word) => [word, word.replaceAll("_", " ")] as const);
  return all === undefined ? each : [["", all], ...each];
}

export function CheckField(props: {
  label: string;
  isOn: boolean;
  onChange: (isOn: boolean) => void;
  hint?: string;
}) {
  const id = useId();
  return (
    <div class="field">
      <span class="choice">
        <input
          id={id}
          type="checkbox"
          checked={props.isOn}
          aria-describedby={props.hint ? `${id}-hint` : undefined}
          onChange={(event) => props.onChange(event.currentTarget.checked)}
        />
        <label for={id}>{props.label}</label>
      </span>
      {props.hint && (
        <div class="hint" id={`${id}-hint`}>
          {props.hint}
        </div>
      )}
    </div>
  );
}

/** The filters of a list, side by side. They stand in the address (`setFilters`). */
export function Filters({ children }: { children: ComponentChildren }) {
  return (
    <fieldset class="filters" aria-label="Filters">
      {children}
    </fieldset>
  );
}

/** A filter that is typed. It takes effect when one presses Enter or leaves the field, not at each letter. */
export function FilterText({
  label,
  name,
  placeholder,
}: {
  label: string;
  name: string;
  placeholder?: string;
}) {
  const inForce = place.value.query.get(name) ?? "";
  const [typed, setTyped] = useState<{ from: string; text: string }>({ from: inForce, text: inForce });
  const text = typed.from === inForce ? typed.text : inForce;
  return (
    <Form class="field" onSubmit={() => setFilters({ [name]: text.trim() })}>
      <TextField
        label={label}
        value={text}
        {...(placeholder && { placeholder })}
        onInput={(value) => setTyped({ from: inForce, text: value })}
        onLeave={() => text.trim() !== inForce && setFilters({ [name]: text.trim() })}
      />
    </Form>
  );
}

/** A filter that is chosen. */
export function FilterSelect(props: { label: string; name: string; options: Options }) {
  return (
    <SelectField
      {...props}
      value={place.value.query.get(props.name) ?? ""}
      onChange={(value) => setFilters({ [props.name]: value })}
    />
  );
}

/** A filter that is an instant. */
export function FilterInstant({ label, name }: { label: string; name: string }) {
  return (
    <TextField
      label={label}
      type="datetime-local"
      value={fieldTextOf(place.value.query.get(name))}
      onInput={(text) => setFilters({ [name]: instantOf(text) })}
    />
  );
}

/** A form that the page itself sends: nothing of it ever comes into an address. */
export function Form(props: {
  onSubmit: () => void;
  children: ComponentChildren;
  class?: string;
  label?: string;
}) {
  return (
    <form
      class={props.class ?? "form"}
      aria-label={props.label}
      noValidate
      onSubmit={(event) => {
        event.preventDefault();
        props.onSubmit();
      }}
    >
      {props.children}
    </form>
  );
}

/** The end of a form: why it failed, the button that sends it, and the way back: an address, or a call. */
export function FormFoot(props: { verb: string; action: Action<[]>; back: string | (() => void) }) {
  const { verb, action, back } = props;
  return (
    <>
      {/* A payload that is no JSON is a fault of its field. */}
      {!(action.error instanceof SyntaxError) && <Trouble error={action.error} />}
      <div class="buttons">
        <button type="submit" class="button first" disabled={action.isBusy}>
          {verb}
        </button>
        {typeof back === "string" ? (
          <Link class="button" href={back}>
            Back
          </Link>
        ) : (
          <button type="button" class="button" onClick={back}>
            Back
          </button>
        )}
      </div>
    </>
  );
}

/**
 * The instant of a `datetime-local` field, whose text is on the clock of this browser; undefined for an empty text, and for
 * a text that is no instant.
 */
export function instantOf(text: string): string | undefined {
  const at = new Date(text);
  return text === "" || Number.isNaN(at.getTime()) ? undefined : at.toISOString();
}

/** The text of a `datetime-local` field for an instant; empty for none. */
export function fieldTextOf(instant: string | null | undefined): string {
  if (!instant) return "";
  const at = new Date(instant);
  if (Number.isNaN(at.getTime())) return "";
  return new Date(at.getTime() - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
}
