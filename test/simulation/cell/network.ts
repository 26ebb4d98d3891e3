import { type Bus, zeroCounts } from "../../../shared/bus/bus.ts";
import { decodeHint } from "../../../shared/bus/encoding.ts";
import { subjectMatches } from "../../../shared/bus/subjects.ts";
import { busOver, type Listener } from "../../../shared/bus/wire.ts";
import type { Log } from "../../../shared/platform/log.ts";
import type { Recording } from "./recording.ts";
import type { SimProcess } from "./sim-process.ts";
import type { Timeline } from "./timeline.ts";

/** How messages fare on the way. `dropped` and `doubled` are parts in [0, 1]. */
export interface Weather {
  dropped: number;
  doubled: number;
  /** Messages may overtake each other by this much. */
  delayMsMax: number;
}

const CALM: Weather = { dropped: 0, doubled: 0, delayMsMax: 0 };
const LATENCY_MS = { least: 0.1, end: 1.5 };

interface Ear {
  process: SimProcess;
  listener: Listener;
  isOpen: boolean;
}

export type Direction = "in" | "out";

/** NATS, as the processes meet it: real messages, encoded and decoded as in the product, on links that fail. */
export class Network {
  weather: Weather = CALM;
  private readonly ears: Ear[] = [];
  /** The links that are cut, as `name/direction`, so that the next life of a process meets them too. */
  private readonly cuts = new Map<string, number>();
  /** Kept messages that wait for a cut link. */
  private kept: { ear: Ear; text: string }[] = [];
  private readonly lastArrivalAt = new Map<string, number>();

  constructor(
    private readonly timeline: Timeline,
    private readonly recording: Recording,
  ) {}

  openBus(process: SimProcess, log: Log): Bus {
    const counts = zeroCounts();
    return busOver(
      {
        publish: (subject, text, kept) =>
          process.act(subject, () => this.publish(process, subject, text, kept)),
        listen: (listener) => {
          const ear = { process, listener, isOpen: true };
          this.ears.push(ear);
          return {
            unsubscribe() {
              ear.isOpen = false;
            },
          };
        },
        get connected() {
          return true;
        },
        async close() {},
      },
      counts,
      log,
    );
  }

  calm(): void {
    this.weather = CALM;
  }

  cut(name: string, direction: Direction): void {
    const link = `${name}/${direction}`;
    this.cuts.set(link, (this.cuts.get(link) ?? 0) + 1);
  }

  heal(name: string, direction: Direction): void {
    const link = `${name}/${direction}`;
    this.cuts.set(link, Math.max(0, (this.cuts.get(link) ?? 0) - 1));
    const waiting = this.kept;
    this.kept = [];
    for (const { ear, text } of waiting) this.carry(ear, text, true);
  }

  healAll(): void {
    this.cuts.clear();
    this.heal("", "in");
  }

  private isCut(name: string, direction: Direction): boolean {
    return (this.cuts.get(`${name}/${direction}`) ?? 0) > 0;
  }

  private publish(sender: SimProcess, subject: string, text: string, kept: boolean): void {
    this.recording.trace(() => `${sender.name} sends ${subject} ${text}`);
    if (text.includes('"queued"')) this.recording.meet("answer: queued");
    if (subject.startsWith("hint.") && (decodeHint(text)?.begun ?? []).length > 0)
      this.recording.meet("hint: begun");
    if (this.isCut(sender.name, "out")) {
      this.recording.meet("message lost on a cut link out");
      return;
    }
    for (const ear of this.ears) {
      if (!ear.isOpen || ear.process.state === "gone" || !subjectMatches(ear.listener.filter, subject))
        continue;
      this.send(sender, ear, text, kept);
    }
  }

  private send(sender: SimProcess, ear: Ear, text: string, kept: boolean): void {
    const { random } = sender;
    const { dropped, doubled, delayMsMax } = this.weather;
    if (dropped > 0 && random.chance(dropped)) {
      this.recording.meet("message dropped");
      return;
    }
    const copies = doubled > 0 && random.chance(doubled) ? 2 : 1;
    if (copies > 1) this.recording.meet("message doubled");
    for (let copy = 0; copy < copies; copy++) {
      let at = this.timeline.now + random.between(LATENCY_MS.least, LATENCY_MS.end);
      if (delayMsMax > 0) at += random.between(0, delayMsMax);
      else at = this.inOrder(sender, ear, at);
      this.timeline.in(at - this.timeline.now, null, () => this.carry(ear, text, kept));
    }
  }

  /** On a calm day the messages of one sender arrive in their order. */
  private inOrder(sender: SimProcess, ear: Ear, at: number): number {
    const link = `${sender.name}>${ear.process.name}`;
    const arrivalAt = Math.max(at, this.lastArrivalAt.get(link) ?? 0);
    this.lastArrivalAt.set(link, arrivalAt);
    return arrivalAt;
  }

  private carry(ear: Ear, text: string, kept: boolean): void {
    if (this.isCut(ear.process.name, "in")) {
      this.recording.meet(kept ? "command waited for a cut link" : "message lost on a cut link in");
      if (kept) this.kept.push({ ear, text });
      return;
    }
    this.timeline.in(0, ear.process, () => {
      if (ear.isOpen) ear.listener.onText(text);
    });
  }
}
