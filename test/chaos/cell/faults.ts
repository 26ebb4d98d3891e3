import type { TcpProxy } from "../../support/tcp-proxy.ts";
import { type ChaosCell, CLOCK_MINUTES } from "./cell.ts";
import type { Member, MemberKind } from "./member.ts";
import type { Targets } from "./targets.ts";

/** The cell and the targets that faults strike. */
export interface Scene {
  cell: ChaosCell;
  targets: Targets;
  /** Times at which the database lost the counts that it had not flushed. */
  countsLostAt: number[];
}

/** Something that goes wrong for a while. */
export interface Fault {
  name: string;
  lastsMs: { least: number; end: number };
  /** The parts of the cell; the fault strikes one of them. No two faults strike the same part at once. */
  partsOf(scene: Scene): readonly string[];
  /**
   * Answers a function that ends the fault. The fault makes its choices by `chance`, a number in [0, 1) of the plan.
   */
  begin(scene: Scene, part: string, chance: number): Promise<() => Promise<unknown>>;
}

const KINDS: readonly MemberKind[] = ["gateway", "worker", "delivery"];
const POSTGRES = "postgres";
const NATS = "nats";
const SHORT_MS = { least: 200, end: 2_500 };
const LONG_MS = { least: 300, end: 4_500 };
const DELAYS_MS = [5, 40, 200];
const IN_SYNC_WITHIN_MS = 30_000;

type Act<Struck> = (
  struck: Struck,
  chance: number,
  scene: Scene,
) => Promise<() => Promise<unknown>> | (() => Promise<unknown>);

/** One fault for each kind of process. */
const ofMembers = (
  name: string,
  lastsMs: Fault["lastsMs"],
  act: Act<Member>,
  kinds: readonly MemberKind[] = KINDS,
): Fault[] =>
  kinds.map((kind) => ({
    name: `${name} ${kind}`,
    lastsMs,
    partsOf: ({ cell }) => cell.of(kind).map((member) => member.name),
    async begin(scene, part, chance) {
      const member = scene.cell.members.find((one) => one.name === part);
      if (member === undefined) throw new Error(`there is no ${part}`);
      return act(member, chance, scene);
    },
  }));

/** A fault of one link, out of those whose names `isOne` accepts. */
const ofLinks = (
  what: string,
  isOne: (link: string) => boolean,
  name: string,
  act: Act<TcpProxy>,
): Fault => ({
  name: `${name} ${what}`,
  lastsMs: SHORT_MS,
  partsOf: ({ cell }) => [...cell.links.keys()].filter(isOne),
  async begin(scene, part, chance) {
    const link = scene.cell.links.get(part);
    if (link === undefined) throw new Error(`there is no ${part}`);
    return act(link, chance, scene);
  },
});

const ofPart = (name: string, part: string, lastsMs: Fault["lastsMs"], act: Act<ChaosCell>): Fault => ({
  name,
  lastsMs,
  partsOf: () => [part],
  begin: async (scene, _part, chance) => act(scene.cell, chance, scene),
});

const releasing = (link: TcpProxy) => async () => link.release();
const holdRequests: Act<TcpProxy> = (link) => {
  link.hold("to server");
  return releasing(link);
};
const holdAnswers: Act<TcpProxy> = (link) => {
  link.hold("to client");
  return releasing(link);
};
const swallow: Act<TcpProxy> = (link) => {
  link.swallowAnswers();
  return releasing(link);
};
const delay: Act<TcpProxy> = (link, chance) => {
  link.delay(DELAYS_MS[Math.floor(chance * DELAYS_MS.length)] ?? 0);
  return releasing(link);
};
const reset: Act<TcpProxy> = (link) => {
  link.cut();
  return async () => link.mend();
};

const isPostgresLink = (link: string) => link.endsWith("/postgres");
const isNatsLink = (link: string) => link.endsWith("/nats");
const isFrontLink = (link: string) => link.startsWith("clients/");

/**
 * A fault of a link to the targets. It loses nothing that an attempt has sent: the run of an attempt that was broken
 * off could not tell whether its target answered.
 */
const ofTargets = (name: string, act: Act<TcpProxy>, places: readonly number[]): Fault => ({
  name: `${name} targets`,
  lastsMs: SHORT_MS,
  partsOf: () => places.map((place) => `targets ${place}`),
  async begin(scene, part, chance) {
    const link = scene.targets.proxies[Number(part.split(" ")[1])];
    if (link === undefined) throw new Error(`there is no ${part}`);
    return act(link, chance, scene);
  },
});

export const FAULTS: readonly Fault[] = [
  ...ofMembers("kill", SHORT_MS, async (member) => {
    await member.kill();
    return () => member.start();
  }),
  ...ofMembers("freeze", LONG_MS, (member) => {
    member.signal("SIGSTOP");
    return async () => member.signal("SIGCONT");
  }),
  ...ofMembers("block the event loop of", SHORT_MS, (member, chance) => {
    member.blockLoop(Math.round(SHORT_MS.least + chance * (SHORT_MS.end - SHORT_MS.least)));
    return async () => undefined;
  }),
  ...ofMembers("restart", SHORT_MS, async (member) => {
    await member.stop();
    return () => member.start();
  }),
  ...ofMembers("set the clock of", SHORT_MS, (member, chance) => {
    member.clock?.set(CLOCK_MINUTES[Math.floor(chance * CLOCK_MINUTES.length)] ?? 0);
    return async () => undefined;
  }),
  ofPart("a worker joins and leaves", "worker-that-joins", LONG_MS, async (cell) => {
    const worker = await cell.extraWorker();
    await worker.start();
    return () => worker.stop();
  }),
  ofLinks("to Postgres", isPostgresLink, "hold what is sent", holdRequests),
  ofLinks("of Postgres", isPostgresLink, "hold answers", holdAnswers),
  ofLinks("of Postgres", isPostgresLink, "swallow answers", swallow),
  ofLinks("Postgres", isPostgresLink, "delay", delay),
  ofLinks("to Postgres", isPostgresLink, "reset connections", reset),
  ofLinks("to NATS", isNatsLink, "hold what is sent", holdRequests),
  ofLinks("of NATS", isNatsLink, "hold answers", holdAnswers),
  ofLinks("NATS", isNatsLink, "delay", delay),
  ofLinks("to NATS", isNatsLink, "reset connections", reset),
  ofLinks("of gateways", isFrontLink, "hold answers", holdAnswers),
  ofLinks("of gateways", isFrontLink, "swallow answers", swallow),
  ofLinks("to gateways", isFrontLink, "reset connections", reset),
  // Requests to endpoints are not held: nobody could tell then whether they were sent before a disabling or after it.
  ofTargets("hold what is sent to", holdRequests, [0]),
  ofTargets("hold answers of", holdAnswers, [0, 1]),
  ofTargets("delay", delay, [0, 1, 2]),
  ofPart("NATS is wiped", NATS, SHORT_MS, async (cell) => {
    await cell.loseNats();
    return () => cell.startNats();
  }),
  ofPart("freeze NATS", NATS, LONG_MS, async (cell) => {
    await cell.nats.kill("SIGSTOP");
    return () => cell.nats.kill("SIGCONT");
  }),
  {
    ...ofPart("kill the pooler", "pooler", SHORT_MS, async ({ pooler }) => {
      await pooler?.kill();
      return async () => pooler?.startAgain();
    }),
    partsOf: ({ cell }) => (cell.pooler === null ? [] : ["pooler"]),
  },
  ofPart("kill the primary", POSTGRES, SHORT_MS, async ({ postgres }, _chance, { countsLostAt }) => {
    countsLostAt.push(performance.now());
    await postgres.killPrimary();
    return () => postgres.startPrimary();
  }),
  ofPart(
    "fill the disk of the primary",
    POSTGRES,
    SHORT_MS,
    async ({ postgres }, _chance, { countsLostAt }) => {
      postgres.fillDisk();
      return async () => {
        await postgres.freeDisk();
        countsLostAt.push(performance.now());
      };
    },
  ),
  ofPart("freeze the standby", POSTGRES, SHORT_MS, ({ postgres }) => {
    postgres.signalStandby("SIGSTOP");
    return async () => postgres.signalStandby("SIGCONT");
  }),
  ofPart("hold the replication", POSTGRES, SHORT_MS, async ({ postgres }, chance, scene) =>
    (chance < 0.5 ? holdRequests : holdAnswers)(postgres.replication, chance, scene),
  ),
  ofPart(
    "promote the standby",
    POSTGRES,
    SHORT_MS,
    async ({ postgres, recording }, _chance, { countsLostAt }) => {
      // As operators do it: only a standby that has everything is promoted.
      if (!(await postgres.untilInSync(IN_SYNC_WITHIN_MS))) {
        recording.meet("the standby was not in sync, and not promoted");
        return async () => undefined;
      }
      countsLostAt.push(performance.now());
      const { fencedAt, promotedAt } = await postgres.promote();
      recording.meet("the standby was promoted");
      recording.meet("milliseconds without a primary", Math.round(promotedAt - fencedAt));
      return () => postgres.addStandby();
    },
  ),
];
