/** A customer's host that counts for itself how many requests it is answering at once. */
export interface OverlapArrival {
  /** A job's attempt, or an event. */
  kind: "job" | "webhook";
  /** Of a job "JOB_ID ATTEMPT", of a webhook the event's id. */
  name: string;
  /** The run's id, or the event's. */
  recordId: string;
}

export interface OverlapTarget {
  url: string;
  arrivals: OverlapArrival[];
  readonly open: OverlapArrival[];
  /** The most that were ever open at once. */
  readonly openMax: number;
  /** Nothing that `isHeld` is answered until the next call; what is open already included. */
  hold(isHeld: (arrival: OverlapArrival) => boolean): void;
  stop(): Promise<void>;
}

/** A request is over when it is answered, or when its connection is closed: that of a killed process by its kernel. */
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
