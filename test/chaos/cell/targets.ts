import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { verifySignature } from "../../../shared/client/signature.ts";
import type { Random } from "../../simulation/cell/random.ts";
import type { HistoryEvent } from "../../support/history/history.ts";
import { startTcpProxy, type TcpProxy } from "../../support/tcp-proxy.ts";
import type { Recording } from "./recording.ts";

/** How a customer's host behaves, as the path of its URL says. */
export const HABITS = ["good", "bad", "final", "flaky", "slow", "silent", "closing", "busy"] as const;
export type Habit = (typeof HABITS)[number];

const QUICK_MS = 5;
const SLOW_MS = { least: 200, end: 2_500 };
const RETRY_AFTER_SECONDS = "1";
/** The answer that comes in place of a host that is away. */
const AWAY = { status: 503, headers: {} };
const MORTAL_NAME = "localhost";
const MORTAL_PROXY = 3;

/**
 * Customers' hosts: one for jobs, one for events, one that closes connections instead of answering, and one that is
 * away for a while and has a name of its own. They check the bytes and the signature of each request, and note when it
 * came and when it was over.
 */
export class Targets {
  /** Once everything has healed, every host is good, except those whose habit is bad or final. */
  isHealed = false;
  private isAway = false;
  /** The secrets that sign requests, by the first part of the path of a project's jobs or the URL of an endpoint. */
  readonly secrets = new Map<string, string>();
  readonly proxies: TcpProxy[] = [];
  private readonly servers: ReturnType<typeof Bun.serve>[] = [];
  private readonly closing: Server;
  private requestCount = 0;

  private constructor(
    private readonly recording: Recording,
    private readonly random: Random,
  ) {
    this.closing = createServer((request, response) => {
      let body = "";
      const at = recording.now;
      request.on("data", (chunk) => (body += chunk));
      request.on("end", () => {
        const headers = new Headers(request.headers as Record<string, string>);
        const number = this.arrive(at, { path: request.url ?? "", headers, body });
        const isAnswered = this.isHealed || random.chance(0.5);
        const status = isAnswered ? 200 : null;
        recording.note({ kind: "request left", at: recording.now, request: number, status });
        recording.meet("target: closing");
        if (isAnswered) response.end();
        else response.socket?.destroy();
      });
    });
  }

  static async start(recording: Recording, random: Random): Promise<Targets> {
    const targets = new Targets(recording, random);
    const serve = (isMortal: boolean) =>
      Bun.serve({
        hostname: "127.0.0.1",
        port: 0,
        idleTimeout: 0,
        fetch: (request) => targets.receive(request, isMortal),
      });
    targets.servers.push(serve(false), serve(false), serve(true));
    await new Promise<void>((resolve) => targets.closing.listen(0, "127.0.0.1", resolve));
    const [jobs = 0, events = 0, mortal = 0] = targets.servers.map(({ port }) => port);
    const ports = [jobs, events, portOf(targets.closing), mortal];
    for (const port of ports) targets.proxies.push(await startTcpProxy({ host: "127.0.0.1", port }));
    return targets;
  }

  /** `token` names what is sent, so that a target knows which bytes it must get. */
  jobUrl(project: number, habit: Habit, token: string, isMortal = false): string {
    const proxy = this.proxies[isMortal ? MORTAL_PROXY : habit === "closing" ? 2 : 0];
    return `http://${isMortal ? MORTAL_NAME : "127.0.0.1"}:${proxy?.port}/p${project}/${habit}/${token}`;
  }

  /**
   * Takes one host away for a time: in the first half 503 is answered in its place, in the second half connections
   * fail. By the second half no good answer is under way, which the cut would lose.
   */
  async beAway(forMs: number): Promise<void> {
    const proxy = this.proxies[MORTAL_PROXY];
    this.isAway = true;
    await Bun.sleep(forMs / 2);
    proxy?.cut();
    await Bun.sleep(forMs / 2);
    this.isAway = false;
    proxy?.mend();
  }

  endpointUrl(project: number, habit: Habit): string {
    return `http://127.0.0.1:${this.proxies[1]?.port}/e${project}/${habit}`;
  }

  async stop(): Promise<void> {
    await Promise.all(this.servers.map((server) => server.stop(true)));
    this.closing.close();
    for (const proxy of this.proxies) await proxy.stop();
  }

  private async receive(request: Request, isMortal: boolean): Promise<Response> {
    const { recording } = this;
    const at = recording.now;
    const path = new URL(request.url).pathname;
    const body = await request.text();
    const number = this.arrive(at, { path, headers: request.headers, body });
    let isLeft = false;
    const leave = (status: number | null) => {
      if (isLeft) return;
      isLeft = true;
      recording.note({ kind: "request left", at: recording.now, request: number, status });
    };
    const { promise: brokenOff, resolve: breakOff } = Promise.withResolvers<void>();
    request.signal.addEventListener("abort", () => {
      leave(null);
      breakOff();
    });
    const isAway = isMortal && this.isAway;
    const habit = isAway ? "busy" : this.habitOf(path);
    recording.meet(`target: ${isAway ? "away" : habit}`);
    if (habit === "silent") await brokenOff;
    else if (habit === "slow") await Bun.sleep(this.random.between(SLOW_MS.least, SLOW_MS.end));
    else await Bun.sleep(this.random.between(0, QUICK_MS));
    const { status, headers } = isAway ? AWAY : this.answerOf(habit);
    leave(status);
    return new Response("", { status, headers });
  }

  /** Notes a request. Answers its number. */
  private arrive(at: number, { path, headers, body }: ReceivedRequest): number {
    const request = ++this.requestCount;
    const [, place = "", habit = "", token = ""] = path.split("/");
    const project = Number(place.slice(1));
    const isDelivery = place.startsWith("e");
    const run = headers.get("webhook-id") ?? "";
    const url = this.endpointUrl(project, habit as Habit);
    const event: Extract<HistoryEvent, { kind: "request arrived" }> = {
      ...{ kind: "request arrived", at, clock: this.recording.readClock(), request, project, run, body },
      what: isDelivery ? "delivery" : "job",
      id: isDelivery ? `${run} ${url}` : (headers.get("service-job-id") ?? ""),
      attempt: isDelivery ? null : Number(headers.get("service-attempt")),
      fault: !isDelivery && body !== payloadOf(token) ? "other bytes than were asked for" : null,
    };
    this.recording.note(event);
    const secrets = this.secrets.get(isDelivery ? url : place) ?? "";
    for (const scheme of ["standard-webhooks", "service-signature"] as const)
      verifySignature({ body, headers }, { secrets, scheme }).catch((error: Error) => {
        event.fault = `a wrong signature: ${error.message}`;
      });
    return request;
  }

  private habitOf(path: string): Habit {
    const habit = HABITS.find((name) => path.split("/")[2] === name) ?? "good";
    return this.isHealed && habit !== "bad" && habit !== "final" ? "good" : habit;
  }

  private answerOf(habit: Habit): { status: number; headers: Record<string, string> } {
    const { random } = this;
    switch (habit) {
      case "good":
      case "slow":
      case "silent":
      case "closing":
        return { status: 200, headers: {} };
      case "bad":
        return { status: 500, headers: {} };
      case "flaky":
        return { status: random.chance(0.5) ? 200 : 500, headers: {} };
      case "final":
        return { status: 400, headers: { "service-no-retry": "true" } };
      case "busy":
        return random.chance(0.3)
          ? { status: 200, headers: {} }
          : { status: 503, headers: { "retry-after": RETRY_AFTER_SECONDS } };
    }
  }
}

interface ReceivedRequest {
  path: string;
  headers: Headers;
  body: string;
}

const portOf = (server: Server) => (server.address() as AddressInfo).port;

/** The payload that this token stands for: text beyond ASCII, and a number that JavaScript cannot hold. */
export const payloadOf = (token: string): string =>
  `{"token":"${token}","text":"Žofie ✓","number":9007199254740993}`;
