import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { dns } from "bun";
import { startNameServer } from "./name-server.ts";

let server: Awaited<ReturnType<typeof startNameServer>>;
beforeAll(async () => {
  server = await startNameServer("192.0.2.7");
});
afterAll(() => server.stop());

const lookUp = (name: string) => dns.lookup(name, { backend: "c-ares" });

describe("the resolver of names", () => {
  test("answers the name server's addresses, and asks it each time", async () => {
    for (let count = 0; count < 2; count++) {
      expect(await lookUp("present.example")).toMatchObject([{ address: "192.0.2.7", family: 4 }]);
    }
  });

  test("reports that a name does not exist", async () => {
    await expect(lookUp("absent.example")).rejects.toMatchObject({ code: "DNS_ENOTFOUND" });
  });

  test("reads the hosts file", async () => {
    const addresses = await lookUp("localhost");
    expect(addresses.every(({ address }) => address === "127.0.0.1" || address === "::1")).toBe(true);
  });

  test("delays no name behind 1,000 names whose servers are silent", async () => {
    let answered = 0;
    const silent: Promise<PromiseSettledResult<unknown>[]>[] = [];
    // The questions come in waves: one without room in the name server's buffer would be repeated seconds later.
    for (let wave = 0; wave < 10; wave++) {
      const asked = Array.from({ length: 100 }, (_, index) =>
        lookUp(`silent-${wave}-${index}.example`).finally(() => answered++),
      );
      silent.push(Promise.allSettled(asked));
      await lookUp(`present-${wave}.example`);
    }
    for (let index = 10; index < 20; index++) await lookUp(`present-${index}.example`);
    expect(answered).toBe(0);
    // The silent questions end by themselves, so that no caller waits for ever.
    for (const { status } of (await Promise.all(silent)).flat()) expect(status).toBe("rejected");
  });
});
