import { ScheduleFormPage } from "./form.tsx";
import { ScheduleList } from "./list.tsx";
import { SchedulePage } from "./schedule.tsx";

/** `schedules`, `schedules/new`, `schedules/{id}` and `schedules/{id}/edit`. */
export function SchedulesPage({ rest: [id, step] }: { rest: readonly string[] }) {
  if (id === undefined) return <ScheduleList />;
  if (id === "new") return <ScheduleFormPage id={null} />;
  return step === "edit" ? <ScheduleFormPage id={id} /> : <SchedulePage id={id} />;
}
