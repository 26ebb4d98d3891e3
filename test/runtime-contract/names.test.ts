import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { getServers, setServers } from "node:dns";
import { join } from "node:path";
import { dns } from "bun";

setDefaultTimeout(60_000);

const before = getServers();
let server: Bun.Subprocess<"ignore", "pipe", "inherit">;
beforeAll(async () => {
  server = Bun.spawn([process.execPath, join(import.meta.dir, "name-server.ts")], {
    stdin: "ignore",
    stdout: "pipe",
  });
  const { value } = await server.stdout.getReader().read();
  setServers([`127.0.0.1:${Number(new TextDecoder().decode(value))}`]);
});
afterAll(async () => {
  setServers(before);
  server.kill();
  await server.exited;
});

const lookUp = (name: string) => dns.lookup(name, { backend: "c-ares" });

describe("the resolver of names", () => {
  test("gives the addresses that the name server gives, and asks it each time", async () => {
    for (let count = 0; count < 2; count++) {
      expect(await lookUp("present.example")).toMatchObject([{ address: "192.0.2.7", family: 4 }]);
    }
  });

  test("says that a name does not exist", async () => {
    await expect(lookUp("absent.example")).rejects.toMatchObject({ code: "DNS_ENOTFOUND" });
  });

  test("reads the file of hosts", async () => {
    const addresses = await lookUp("localhost");
    expect(addresses.every(({ address }) => address === "127.0.0.1" || address === "::1")).toBe(true);
  });

  test("keeps no name waiting for 1,000 whose servers are silent", async () => {
    let answered = 0;
    const silent = Array.from({ length: 1_000 }, (_, index) =>
      lookUp(`silent-${index}.example`).finally(() => answered++),
    );
    const all = Promise.allSettled(silent);
    for (let index = 0; index < 20; index++) await lookUp(`present-${index}.example`);
    expect(answered).toBe(0);
    // They end by themselves, so that nothing waits for them for ever.
    for (const { status } of await all) expect(status).toBe("rejected");
  });
});
