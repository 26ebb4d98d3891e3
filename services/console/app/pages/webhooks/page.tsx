import { WebhookPage } from "./endpoint.tsx";
import { WebhookFormPage } from "./form.tsx";
import { WebhookList } from "./list.tsx";

/** `webhooks`, `webhooks/new`, `webhooks/{id}` and `webhooks/{id}/edit`. */
export function WebhooksPage({ rest: [id, step] }: { rest: readonly string[] }) {
  if (id === undefined) return <WebhookList />;
  if (id === "new") return <WebhookFormPage id={null} />;
  return step === "edit" ? <WebhookFormPage id={id} /> : <WebhookPage id={id} />;
}
