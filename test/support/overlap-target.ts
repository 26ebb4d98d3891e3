/** An arrival at a customer's host that counts how many requests it has open at once. */
export interface OverlapArrival {
  /** A job's attempt, or an event. */
  kind: "job" | "webhook";
  /** "JOB_ID ATTEMPT" for a job; the event's id for a webhook. */
  name: string;
  /** The run's id, or the event's. */
  recordId: string;
}

export interface OverlapTarget {
  url: string;
  arrivals: OverlapArrival[];
  readonly open: OverlapArrival[];
  /** The most requests that were open at once. */
  readonly openMax: number;
  /** Leaves every request unanswered for which `isHeld` is true, open ones included, until the next call. */
  hold(isHeld: (arrival: OverlapArrival) => boolean): void;
  stop(): Promise<void>;
}

/** A request is over when it is answered or its connection is closed; the kernel closes a killed process's connections. */
export function startOverlapTarget(answerAfterMs: number): OverlapTarget {
  const arrivals: OverlapArrival[] = [];
  const open = new Set<OverlapArrival>();
  let openMax = 0;
  let isHeld: (arrival: OverlapArrival) => boolean = () => false;
  let changed = Promise.withResolvers<void>();
  const server = Bun.serve({
    hostname: "127.0.0.1",
    port: 0,
    idleTimeout: 0,
    async fetch(request) {
      const arrival = readArrival(request.headers);
      arrivals.push(arrival);
      open.add(arrival);
      openMax = Math.max(openMax, open.size);
      request.signal.addEventListener("abort", () => open.delete(arrival));
      await request.text();
      await Bun.sleep(answerAfterMs);
      while (isHeld(arrival)) await changed.promise;
      open.delete(arrival);
      return new Response("ok");
    },
  });
  return {
    url: `http://127.0.0.1:${server.port}/hook`,
    arrivals,
    get open() {
      return [...open];
    },
    get openMax() {
      return openMax;
    },
    hold(held) {
      isHeld = held;
      changed.resolve();
      changed = Promise.withResolvers();
    },
    async stop() {
      await server.stop(true);
    },
  };
}

function readArrival(headers: Headers): OverlapArrival {
  const jobId = headers.get("service-job-id");
  const recordId = headers.get("webhook-id") ?? "";
  return jobId === null
    ? { kind: "webhook", name: recordId, recordId }
    : { kind: "job", name: `${jobId} ${headers.get("service-attempt")}`, recordId };
}
