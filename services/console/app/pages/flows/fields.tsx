import type { Flow, FlowHold } from "../../../../../shared/domain/flow-key.ts";
import { SelectField, TextField } from "../../ui/form.tsx";
import { rateOf } from "./rate.ts";

/** What a job or a schedule says of its flow, as the texts of a form. */
export interface FlowTexts {
  /** Empty for no flow. */
  flowKey: string;
  flowConcurrency: string;
  flowCount: string;
  flowPerSeconds: string;
  flowHold: string;
}

export function flowTextsOf(flow: Flow | undefined): FlowTexts {
  return {
    flowKey: flow?.key ?? "",
    flowConcurrency: String(flow?.concurrency ?? ""),
    flowCount: String(flow?.rate?.count ?? ""),
    flowPerSeconds: String(flow?.rate?.per_seconds ?? ""),
    flowHold: flow?.hold ?? "",
  };
}

/** Null without a key. */
export function flowOf(texts: FlowTexts): Flow | null {
  if (texts.flowKey.trim() === "") return null;
  const rate = rateOf(texts.flowCount, texts.flowPerSeconds);
  return {
    key: texts.flowKey.trim(),
    ...(texts.flowConcurrency && { concurrency: Number(texts.flowConcurrency) }),
    ...(rate !== null && { rate }),
    ...(texts.flowHold && { hold: texts.flowHold as FlowHold }),
  };
}

export function FlowFields(props: {
  texts: FlowTexts;
  set: (name: keyof FlowTexts) => (value: string) => void;
  fault: (param: string) => string | undefined;
}) {
  const { texts, set, fault } = props;
  return (
    <>
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
          placeholder="as before"
          fault={fault("flow.concurrency")}
        />
        <SelectField
          label="A place is kept"
          value={texts.flowHold}
          onChange={set("flowHold")}
          options={[
            ["", "by each attempt (default)"],
            ["attempt", "by each attempt"],
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
          placeholder="as before"
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
