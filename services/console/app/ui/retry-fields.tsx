import { RETRY_POLICY_BOUNDS } from "../../../../shared/domain/job.ts";
import { TextField } from "./form.tsx";

const FIELDS = [
  { name: "maxAttempts", param: "retry_policy.max_attempts", label: "Attempts at most" },
  { name: "baseSeconds", param: "retry_policy.base_seconds", label: "First wait, in seconds" },
  { name: "capSeconds", param: "retry_policy.cap_seconds", label: "Longest wait, in seconds" },
] as const;
type Name = (typeof FIELDS)[number]["name"];

/** The fields of a retry policy. An empty one shows the default. */
export function RetryFields(props: {
  texts: Readonly<Record<Name, string>>;
  set: (name: Name) => (value: string) => void;
  fault: (param: string) => string | undefined;
}) {
  return (
    <div class="form-row">
      {FIELDS.map(({ name, param, label }) => (
        <TextField
          key={name}
          label={label}
          type="number"
          value={props.texts[name]}
          onInput={props.set(name)}
          placeholder={String(RETRY_POLICY_BOUNDS[name].default)}
          min={RETRY_POLICY_BOUNDS[name].min}
          max={RETRY_POLICY_BOUNDS[name].max}
          fault={props.fault(param)}
        />
      ))}
    </div>
  );
}
