import { useState } from "preact/hooks";
import type { Schedule } from "../../../../../shared/client/schedules.ts";
import { PER_SECOND_BOUNDS } from "../../../../../shared/domain/bulk.ts";
import { faultOf, usePost } from "../../data/action.ts";
import { goTo, hrefOf } from "../../data/place.ts";
import { useSession } from "../../data/session.ts";
import { Dialog, tell } from "../../ui/dialog.tsx";
import { Form, fieldTextOf, instantOf, TextField } from "../../ui/form.tsx";
import { Trouble } from "../../ui/page.tsx";

const DAY_MS = 86_400_000;

/** One job for each instant of a range that did not fire, as a bulk operation. It can be counted first. */
export function Backfill({ schedule, onClose }: { schedule: Schedule; onClose: () => void }) {
  const { client } = useSession();
  const [from, setFrom] = useState(() => fieldTextOf(new Date(Date.now() - DAY_MS).toISOString()));
  const [to, setTo] = useState(() => fieldTextOf(new Date().toISOString()));
  const [perSecond, setPerSecond] = useState("");
  const wish = {
    action: "backfill" as const,
    filter: { schedule_id: schedule.id, from: instantOf(from) ?? "", to: instantOf(to) ?? "" },
    ...(perSecond && { per_second: Number(perSecond) }),
  };
  const start = usePost(async (options, isDry: boolean) => {
    const { id } = await client.bulk.create(isDry ? { ...wish, dry_run: true } : wish, options);
    tell(isDry ? "The instants are being counted." : "The backfill has begun.");
    goTo(hrefOf("bulk", [id]));
  }, wish);
  return (
    <Dialog title="Backfill" onClose={onClose}>
      <p>
        One job, due at once, for each instant in the range that did not fire. The ledger then says
        “backfilled”.
      </p>
      <Form label="Backfill" onSubmit={() => start.run(false)}>
        <div class="form-row">
          <TextField
            label="From"
            type="datetime-local"
            value={from}
            onInput={setFrom}
            fault={faultOf(start.error, "filter.from")}
          />
          <TextField
            label="To"
            type="datetime-local"
            value={to}
            onInput={setTo}
            hint="Instants before this one."
            fault={faultOf(start.error, "filter.to")}
          />
        </div>
        <TextField
          label="Jobs a second, at most"
          type="number"
          value={perSecond}
          onInput={setPerSecond}
          placeholder={String(PER_SECOND_BOUNDS.default)}
          min={PER_SECOND_BOUNDS.min}
          max={PER_SECOND_BOUNDS.max}
          fault={faultOf(start.error, "per_second")}
        />
        <Trouble error={start.error} />
        <div class="buttons">
          <button type="button" class="button" onClick={onClose}>
            Back
          </button>
          <button type="button" class="button" disabled={start.isBusy} onClick={() => start.run(true)}>
            Only count
          </button>
          <button type="submit" class="button first" disabled={start.isBusy}>
            Backfill
          </button>
        </div>
      </Form>
    </Dialog>
  );
}
