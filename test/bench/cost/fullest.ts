import { randomBytes } from "node:crypto";
import { NODE_LIMITS } from "../../../services/delivery/concurrency.ts";
import { PAYLOAD_BYTES_MAX } from "../../../shared/domain/job.ts";
import { until } from "../harness/processes.ts";
import type { Cell } from "./cell.ts";
import { forgetPeaks, readPeaks } from "./readings.ts";

/** The most that a gateway and a delivery node can be made to hold within their own bounds. */
export interface Fullest {
  /** Bytes of memory while these bodies came at once, and the number of accepted bodies. */
  gateway: { peakBytes: number; bodies: number; bodyBytes: number; taken: number };
  /** Bytes of memory with these attempts on the wire, each with the largest payload. */
  delivery: { peakBytes: number; attempts: number };
}

const HOSTS = 2;
const DAY_MS = 86_400_000;
const SETTLED_LOOKS = 20;
const LOOK_EVERY_MS = 250;
/** The most of the largest jobs that fit into a body. */
const JOBS_PER_BODY = 100;
/** The bodies that a gateway accepts at once from one project. The bodies of two projects fill the gateway. */
const BODIES_OF_PROJECT = 5;

export async function measureFullest(cell: Cell): Promise<Fullest> {
  const gateway = await fillGateway(cell);
  return { gateway, delivery: await fillDelivery(cell) };
}

/** Text that cannot be compressed. */
const payloadOf = (bytes: number) =>
  `{"text":"${randomBytes(bytes)
    .toString("base64")
    .slice(0, bytes - 11)}"}`;

async function fillDelivery(cell: Cell): Promise<Fullest["delivery"]> {
  const { pids, db } = cell.watched;
  await cell.beginReceiving();
  const payload = payloadOf(PAYLOAD_BYTES_MAX);
  forgetPeaks(pids);
  for (const host of [cell.sink.http, cell.sink.other])
    await cell.store({
      count: NODE_LIMITS.attemptsMax / HOSTS,
      firstAt: Date.now(),
      perS: Number.POSITIVE_INFINITY,
      targetUrl: `${host}/stall`,
      payload,
    });
  let attempts = 0;
  let looks = 0;
  // A node that is over 80 % full gives a project only what is still free, so the node stays below its bound.
  await until("the node took all that it takes", async () => {
    const { count } = await cell.received();
    looks = count > 0 && count === attempts ? looks + 1 : 0;
    attempts = count;
    await Bun.sleep(LOOK_EVERY_MS);
    return looks >= SETTLED_LOOKS;
  });
  const { delivery: peakBytes } = readPeaks(pids);
  await db.run("no_more", "DELETE FROM open_jobs WHERE node_id IS NULL AND due_at <= now()", []);
  await fetch(`${cell.sink.http}/release`);
  return { peakBytes, attempts };
}

async function fillGateway(cell: Cell): Promise<Fullest["gateway"]> {
  const { pids } = cell.watched;
  const tomorrow = new Date(Date.now() + DAY_MS).toISOString();
  const job = `{"target_url":"${cell.sink.http}/hook","run_at":"${tomorrow}","payload":${payloadOf(PAYLOAD_BYTES_MAX)}}`;
  const body = `{"jobs":[${Array.from({ length: JOBS_PER_BODY }, () => job).join(",")}]}`;
  forgetPeaks(pids);
  const statuses = await Promise.all(
    [cell.keys.production, cell.neighbourKey].flatMap((key) =>
      Array.from({ length: BODIES_OF_PROJECT }, async () => {
        const { status } = await fetch(`${cell.gatewayUrl}/v2/jobs/batch`, {
          method: "POST",
          headers: { authorization: `Bearer ${key}`, "content-type": "application/json" },
          body,
        });
        return status;
      }),
    ),
  );
  const taken = statuses.filter((status) => status === 201).length;
  return {
    peakBytes: readPeaks(pids).gateway,
    bodies: statuses.length,
    bodyBytes: body.length,
    taken,
  };
}
