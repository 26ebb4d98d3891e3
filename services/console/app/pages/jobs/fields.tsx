import type { ComponentChildren } from "preact";
import { RETRY_POLICY_BOUNDS } from "../../../../../shared/domain/job.ts";
import { faultOf } from "../../data/action.ts";
import { AreaField, SelectField, TextField } from "../../ui/form.tsx";
import type { JobTexts } from "./texts.ts";

const POLICY_FIELDS = [
  { name: "maxAttempts", param: "retry_policy.max_attempts", label: "Attempts at most" },
  { name: "baseSeconds", param: "retry_policy.base_seconds", label: "First wait, in seconds" },
  { name: "capSeconds", param: "retry_policy.cap_seconds", label: "Longest wait, in seconds" },
] as const;

/** The fields that the forms of a job and of a schedule have in common. */
export function JobFields(props: {
  texts: JobTexts;
  set: (name: keyof JobTexts) => (value: string) => void;
  /** Why the form has failed. */
  error: unknown;
  hasFocus?: boolean;
  /** Fields beside the tags. */
  children: ComponentChildren;
}) {
  const { texts, set, error } = props;
  const fault = (param: string) => faultOf(error, param);
  return (
    <>
      <TextField
        label="Target URL"
        type="url"
        value={texts.targetUrl}
        onInput={set("targetUrl")}
        placeholder="https://example.com/hook"
        fault={fault("target_url")}
        isMono
        hasFocus={props.hasFocus ?? false}
      />
      <AreaField
        label="Payload"
        value={texts.payload}
        onInput={set("payload")}
        hint="A JSON object. Your target receives every digit as you write it."
        fault={error instanceof SyntaxError ? `This is no JSON object: ${error.message}` : fault("payload")}
      />
      <div class="form-row">
        {props.children}
        <TextField
          label="Tags"
          value={texts.tags}
          onInput={set("tags")}
          placeholder="customer:4711 invoices"
          hint="With blanks between them."
          fault={fault("tags")}
        />
      </div>
      <div class="form-row">
        {POLICY_FIELDS.map(({ name, param, label }) => (
          <TextField
            key={name}
            label={label}
            type="number"
            value={texts[name]}
            onInput={set(name)}
            placeholder={String(RETRY_POLICY_BOUNDS[name].default)}
            min={RETRY_POLICY_BOUNDS[name].min}
            max={RETRY_POLICY_BOUNDS[name].max}
            fault={fault(param)}
          />
        ))}
      </div>
      <div class="form-row">
        <TextField
          label="Flow key"
          value={texts.flowKey}
          onInput={set("flowKey")}
          placeholder="account:4711"
          hint="Jobs of one key share its limits."
          fault={fault("flow.key")}
        />
        <TextField
          label="Its attempts at once"
          type="number"
          value={texts.flowConcurrency}
          onInput={set("flowConcurrency")}
          placeholder="as the key has it"
          fault={fault("flow.concurrency")}
        />
        <SelectField
          label="A place is kept"
          value={texts.flowHold}
          onChange={set("flowHold")}
          options={[
            ["", "per attempt (default)"],
            ["attempt", "per attempt"],
            ["job", "until the job is over"],
          ]}
          fault={fault("flow.hold")}
        />
      </div>
      <div class="form-row">
        <TextField
          label="Its starts"
          type="number"
          value={texts.flowCount}
          onInput={set("flowCount")}
          placeholder="as the key has it"
          fault={fault("flow.rate.count") ?? fault("flow.rate")}
        />
        <TextField
          label="in so many seconds"
          type="number"
          value={texts.flowPerSeconds}
          onInput={set("flowPerSeconds")}
          fault={fault("flow.rate.per_seconds")}
        />
      </div>
    </>
  );
}
