import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { InFlight, RequestsPerHost } from "./concurrency.ts";

const LIMITS = { attemptsMax: 100, perHostMax: 5 };

const take = (jobs: InFlight, id: string, projectNo: number) =>
  jobs.add(id, projectNo, { attempt: 1, answer: Promise.resolve(null) });

/** Takes jobs of the project until it may have no more. Returns how many it has then. */
function fill(jobs: InFlight, projectNo: number): number {
  let count = 0;
  while (jobs.room > 0 && !jobs.isShareTaken(projectNo)) take(jobs, `${projectNo} ${count++}`, projectNo);
  return count;
}

describe("a node that gets full", () => {
  test("lets one project have up to four fifths of it", () => {
    const jobs = new InFlight(LIMITS);
    expect(fill(jobs, 1)).toBe(80);
    expect(jobs.room).toBe(20);
  });

  test("has room for each project that comes while all before it stall", () => {
    const jobs = new InFlight(LIMITS);
    expect([1, 2, 3, 4, 5].map((projectNo) => fill(jobs, projectNo))).toEqual([80, 10, 5, 3, 1]);
    expect(jobs.room).toBe(1);
  });

  test("grants nothing beyond an equal share", () => {
    const jobs = new InFlight(LIMITS);
    for (let projectNo = 1; projectNo <= 40; projectNo++) {
      for (let count = 0; count < 2; count++) take(jobs, `${projectNo} ${count}`, projectNo);
    }
    // 40 projects share 100 places: 2.5 each, so a project may take a third. With a 41st the share is above 2, too.
    expect(jobs.isShareTaken(1)).toBe(false);
    take(jobs, "1 2", 1);
    expect(jobs.isShareTaken(1)).toBe(true);
    expect(fill(jobs, 41)).toBe(3);
  });

  test("gives shares back with the jobs that end", () => {
    const jobs = new InFlight(LIMITS);
    fill(jobs, 1);
    for (let count = 0; count < 80; count++) jobs.delete(`1 ${count}`, 1);
    jobs.delete("1 0", 1);
    expect(jobs.size).toBe(0);
    expect(fill(jobs, 2)).toBe(80);
  });
});

describe("the requests in flight to one host", () => {
  test("are never more than their limit, whatever is claimed, known before or not, and in whatever order it ends", () => {
    const step = fc.record({
      host: fc.nat(2),
      looksUp: fc.boolean(),
      isGranted: fc.boolean(),
      ends: fc.nat(9),
    });
    fc.assert(
      fc.property(fc.array(step, { maxLength: 300, size: "max" }), (steps) => {
        const hosts = new RequestsPerHost(LIMITS);
        const sent: string[] = [];
        const claims: { host: string; counted: string | null; isGranted: boolean }[] = [];
        for (const { host, looksUp, isGranted, ends } of steps) {
          const name = `host ${host}`;
          if (!looksUp && hosts.mayClaimBlindly()) claims.push({ host: name, counted: null, isGranted });
          else if (hosts.mayClaimFor(name)) claims.push({ host: name, counted: name, isGranted });
          else continue;
          hosts.add(claims.at(-1)?.counted ?? null);
          // Some claim is answered, and some request ends, while others are still under way.
          if (ends % 2 === 0) {
            const [claim] = claims.splice(ends % claims.length, 1);
            if (claim?.isGranted) sent.push(claim.host) && hosts.add(claim.host);
            if (claim !== undefined) hosts.delete(claim.counted);
          }
          if (ends % 3 === 0 && sent.length > 0) hosts.delete(sent.splice(ends % sent.length, 1)[0] ?? null);
          for (const each of new Set(sent)) {
            expect(sent.filter((other) => other === each).length).toBeLessThanOrEqual(LIMITS.perHostMax);
          }
        }
        for (const claim of claims) hosts.delete(claim.counted);
        for (const host of sent) hosts.delete(host);
        // All places are free again, so as many blind claims may begin as at first.
        let blind = 0;
        for (; blind <= LIMITS.perHostMax && hosts.mayClaimBlindly(); blind++) hosts.add(null);
        expect(blind).toBe(LIMITS.perHostMax);
      }),
    );
  });

  test("tell those who wait when a blind claim has ended", async () => {
    const hosts = new RequestsPerHost(LIMITS);
    for (let round = 0; round < 2; round++) {
      for (const host of [null, null, "a.example"]) hosts.add(host);
      let toldCount = 0;
      for (let waiter = 0; waiter < 2; waiter++) void hosts.nextBlindEnd().then(() => toldCount++);
      hosts.delete("a.example");
      await new Promise((resolve) => setImmediate(resolve));
      expect(toldCount).toBe(0);
      for (const host of [null, null]) hosts.delete(host);
      await new Promise((resolve) => setImmediate(resolve));
      expect(toldCount).toBe(2);
    }
  });

  test("are never more than operators allow, wherever blind claims lead and whatever the limits become meanwhile", () => {
    const HOSTS = ["host 0", "host 1", "host 2"];
    const limit = fc.record({ host: fc.constantFrom(...HOSTS), requests: fc.nat(7) });
    const step = fc.record({ host: fc.nat(2), looksUp: fc.boolean(), ends: fc.nat(9) });
    const change = fc.record({
      limits: fc.uniqueArray(limit, { selector: (each) => each.host, maxLength: 3 }),
    });
    fc.assert(
      fc.property(
        fc.array(fc.oneof({ weight: 9, arbitrary: step }, change), { maxLength: 200, size: "max" }),
        (steps) => {
          const hosts = new RequestsPerHost(LIMITS);
          let lowered = new Map<string, number>();
          const sent: string[] = [];
          const claims: { host: string; counted: string | null }[] = [];
          const sentTo = (host: string) => sent.filter((other) => other === host).length;
          const expectWithin = (bounds: readonly number[]) => {
            for (const [index, host] of HOSTS.entries()) {
              expect(sentTo(host)).toBeLessThanOrEqual(bounds[index] ?? 0);
            }
          };
          for (const each of steps) {
            // Requests that were claimed under a higher limit may run to their end there.
            const bounds = HOSTS.map((host) =>
              Math.max(lowered.get(host) ?? LIMITS.perHostMax, sentTo(host)),
            );
            if ("limits" in each) {
              for (const { host, counted } of claims.splice(0)) {
                sent.push(host) && hosts.add(host);
                hosts.delete(counted);
              }
              expectWithin(bounds);
              lowered = new Map(each.limits.map(({ host, requests }) => [host, requests]));
              hosts.lower(each.limits);
              continue;
            }
            const name = HOSTS[each.host] ?? "";
            if (!each.looksUp && hosts.mayClaimBlindly()) claims.push({ host: name, counted: null });
            else if (hosts.mayClaimFor(name)) claims.push({ host: name, counted: name });
            else continue;
            hosts.add(claims.at(-1)?.counted ?? null);
            if (each.ends % 2 === 0) {
              const [claim] = claims.splice(each.ends % claims.length, 1);
              if (claim === undefined) continue;
              sent.push(claim.host) && hosts.add(claim.host);
              hosts.delete(claim.counted);
            }
            expectWithin(bounds);
            if (each.ends % 3 === 0 && sent.length > 0) hosts.delete(sent.splice(0, 1)[0] ?? null);
          }
        },
      ),
    );
  });

  test("are none to a host at 0, and its attempts are looked up, while other hosts are as free as before", () => {
    const hosts = new RequestsPerHost(LIMITS);
    hosts.lower([{ host: "held", requests: 0 }]);
    const may = () => [hosts.mayClaimBlindly(), hosts.mayClaimFor("held"), hosts.mayClaimFor("other")];
    expect(may()).toEqual([false, false, true]);
    hosts.lower([]);
    expect(may()).toEqual([true, true, true]);
  });

  test("are never more than the node takes on, even if an operator allows more", () => {
    const hosts = new RequestsPerHost(LIMITS);
    hosts.lower([{ host: "wide", requests: 1_000 }]);
    for (let count = 0; count < LIMITS.perHostMax; count++) hosts.add("wide");
    expect([hosts.mayClaimBlindly(), hosts.mayClaimFor("wide")]).toEqual([false, false]);
  });

  test("are not filled up by settlements that start another attempt: the last place is left, and half of a lowered limit", () => {
    const taken = (requests: number | null, inFlight: number) => {
      const hosts = new RequestsPerHost({ attemptsMax: 100, perHostMax: 10 });
      if (requests !== null) hosts.lower([{ host: "a.example", requests }]);
      for (let index = 0; index < inFlight; index++) hosts.add("b.example");
      let count = 0;
      while (count < 100 && hosts.mayTakeBlindly()) {
        hosts.add(null);
        count++;
      }
      return count;
    };
    expect([taken(null, 0), taken(null, 7), taken(null, 9), taken(null, 10)]).toEqual([9, 2, 0, 0]);
    expect([taken(6, 0), taken(6, 8), taken(1, 0), taken(0, 0)]).toEqual([3, 1, 0, 0]);
  });

  test("leave other hosts free", () => {
    const hosts = new RequestsPerHost(LIMITS);
    for (let count = 0; count < 5; count++) hosts.add("full");
    expect([hosts.mayClaimBlindly(), hosts.mayClaimFor("full"), hosts.mayClaimFor("other")]).toEqual([
      false,
      false,
      true,
    ]);
    hosts.delete("full");
    expect(hosts.mayClaimFor("full")).toBe(true);
  });
});
