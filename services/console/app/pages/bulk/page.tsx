import { BulkList } from "./list.tsx";
import { NewBulkPage } from "./new.tsx";
import { BulkPage } from "./operation.tsx";

/** `bulk`, `bulk/new` and `bulk/{id}`. */
export function BulkPages({ rest: [id] }: { rest: readonly string[] }) {
  if (id === undefined) return <BulkList />;
  return id === "new" ? <NewBulkPage /> : <BulkPage id={id} />;
}
