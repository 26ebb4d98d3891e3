import type { ComponentType } from "preact";
import type { Resource } from "../../../../shared/domain/key.ts";
import type { PageName } from "../paths.ts";
import { BulkPages } from "./bulk/page.tsx";
import { FlowsPage } from "./flows/page.tsx";
import { HostsPage } from "./hosts/page.tsx";
import { JobsPage } from "./jobs/page.tsx";
import { KeysPage } from "./keys/page.tsx";
import { OverviewPage } from "./overview/page.tsx";
import { RunsPage } from "./runs/page.tsx";
import { SchedulesPage } from "./schedules/page.tsx";
import { UsagePage } from "./usage/page.tsx";
import { WebhooksPage } from "./webhooks/page.tsx";

/** A page of the console: an entry of the menu, and everything below its address. */
export interface ConsolePage {
  name: PageName;
  /** The page's name in the menu. */
  title: string;
  /** The resource that a key must be permitted to read for the page to be of use. */
  resource: Resource;
  /** `g` and this letter lead to it. */
  key: string;
  view: ComponentType<{ rest: readonly string[] }>;
}

/** In the order of the menu. */
export const PAGES: readonly ConsolePage[] = [
  { name: "overview", title: "Overview", resource: "project", key: "o", view: OverviewPage },
  { name: "jobs", title: "Jobs", resource: "jobs", key: "j", view: JobsPage },
  { name: "runs", title: "Runs", resource: "runs", key: "r", view: RunsPage },
  { name: "schedules", title: "Schedules", resource: "schedules", key: "s", view: SchedulesPage },
  { name: "bulk", title: "Bulk", resource: "bulk", key: "b", view: BulkPages },
  { name: "webhooks", title: "Webhooks", resource: "webhooks", key: "w", view: WebhooksPage },
  { name: "flows", title: "Flows", resource: "flows", key: "f", view: FlowsPage },
  { name: "hosts", title: "Hosts", resource: "hosts", key: "h", view: HostsPage },
  { name: "usage", title: "Usage", resource: "project", key: "u", view: UsagePage },
  { name: "keys", title: "Keys", resource: "project", key: "k", view: KeysPage },
];
