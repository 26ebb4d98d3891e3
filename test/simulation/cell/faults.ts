import type { Network } from "./network.ts";
import type { SupervisedNode } from "./nodes.ts";
import type { Fault } from "./plan.ts";
import type { Random } from "./random.ts";
import type { Recording } from "./recording.ts";
import type { Server } from "./server.ts";
import type { Targets } from "./targets.ts";
import type { Timeline } from "./timeline.ts";

/** Makes faults happen in a simulated cell, and heals all of them. */
export class Faults {
  constructor(
    private readonly timeline: Timeline,
    private readonly recording: Recording,
    private readonly server: Server,
    private readonly network: Network,
    private readonly targets: Targets,
    private readonly nodes: readonly SupervisedNode[],
    private readonly random: Random,
  ) {}

  begin(fault: Fault): void {
    this.recording.meet(`fault: ${fault.kind}`);
    this.recording.trace(() => `! ${JSON.stringify(fault)}`);
    switch (fault.kind) {
      case "crash": {
        const node = this.node(fault.node);
        node.restartsAfterMs = fault.restartsAfterMs;
        node.process.armCrash({ ...fault.crash });
        break;
      }
      case "restart":
        this.node(fault.node).stop();
        break;
      case "freeze": {
        const { process } = this.node(fault.node);
        process.freeze();
        this.after(fault.forMs, () => process.thaw());
        break;
      }
      case "slow down": {
        const { process } = this.node(fault.node);
        process.slowMs = fault.byMs;
        this.after(fault.forMs, () => {
          process.slowMs = 0;
        });
        break;
      }
      case "late timers": {
        const { process } = this.node(fault.node);
        process.lateTimersMs = fault.byMs;
        this.after(fault.forMs, () => {
          process.lateTimersMs = 0;
        });
        break;
      }
      case "cut":
        this.cut(this.node(fault.node).place.name, fault.direction, 0, fault.forMs);
        break;
      case "swizzle":
        this.swizzle(fault.forMs);
        break;
      case "storm":
        this.network.weather = fault;
        this.after(fault.forMs, () => this.network.calm());
        break;
      case "statements": {
        const process = fault.node === null ? null : this.node(fault.node).place.name;
        const held = { process, ...fault.what };
        this.server.faults.add(held);
        this.after(fault.forMs, () => this.server.faults.delete(held));
        break;
      }
      case "outage":
        this.server.isDown = true;
        this.after(fault.forMs, () => {
          this.server.isDown = false;
        });
        break;
      case "host away":
        this.targets.away.add(fault.host);
        this.after(fault.forMs, () => this.targets.away.delete(fault.host));
        break;
      case "clock leap":
        this.server.leap(fault.byMs);
        this.recording.note({ kind: "clock set", at: this.timeline.now, clock: this.server.readClock() });
        break;
    }
  }

  /** Ends all faults, and starts every node that has died. */
  heal(): void {
    this.recording.trace(() => "! everything heals");
    this.server.faults.clear();
    this.server.isDown = false;
    this.network.calm();
    this.network.healAll();
    for (const node of this.nodes) {
      node.process.heal();
      node.process.thaw();
      node.restart();
    }
  }

  /** Cuts every link in random order, then heals them in another ("swizzle-clogging" in FoundationDB). */
  private swizzle(forMs: number): void {
    const links = this.nodes.flatMap(({ place }) => [
      { name: place.name, direction: "in" as const },
      { name: place.name, direction: "out" as const },
    ]);
    const healing = this.random.shuffle(links);
    for (const [index, { name, direction }] of this.random.shuffle(links).entries()) {
      const cutsAfter = (index / links.length) * (forMs / 2);
      const place = healing.findIndex((link) => link.name === name && link.direction === direction);
      const healsAfter = forMs / 2 + (place / links.length) * (forMs / 2);
      this.cut(name, direction, cutsAfter, healsAfter - cutsAfter);
    }
  }

  private cut(name: string, direction: "in" | "out", afterMs: number, forMs: number): void {
    this.after(afterMs, () => {
      this.network.cut(name, direction);
      this.after(forMs, () => this.network.heal(name, direction));
    });
  }

  private node(index: number): SupervisedNode {
    return this.nodes[index % this.nodes.length] as SupervisedNode;
  }

  private after(ms: number, act: () => void): void {
    this.timeline.in(ms, null, act);
  }
}
