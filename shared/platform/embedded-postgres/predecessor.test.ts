import { afterAll, expect, setDefaultTimeout, test } from "bun:test";
import { once } from "node:events";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chooseAccount, prepareBinaries } from "./binaries.ts";
import { startEmbeddedPostgres } from "./embedded-postgres.ts";
import { CLUSTER, homeOf } from "./home.ts";
import { endPredecessor, type ListProcesses, listByPs, nameCluster } from "./predecessor.ts";
import { startServer } from "./server.ts";

setDefaultTimeout(300_000);

const dataDir = mkdtempSync(join(tmpdir(), "predecessor-"));
afterAll(() => rmSync(dataDir, { recursive: true, force: true }));

test.skipIf(Bun.which("ps") === null)(
  "a server that was left running is found and ended by ps too, as on systems without /proc",
  async () => {
    await (await startEmbeddedPostgres({ dataDir })).stop();
    const home = homeOf(dataDir);
    const [cluster, clusterName, account] = [join(home, CLUSTER), nameCluster(home), chooseAccount(home)];
    const start = { cluster, clusterName, account, binaries: prepareBinaries(account), log: () => {} };
    const { process: server } = await startServer(start);
    const ended = once(server, "exit");
    const backends = listByPs().filter(({ command }) => command.startsWith(`postgres: ${clusterName}: `));
    expect(backends.length).toBeGreaterThan(2);
    await endPredecessor(`${clusterName}0`, join(dataDir, "none"), listByPs);
    expect(server.exitCode ?? server.signalCode).toBeNull();
    await endPredecessor(clusterName, cluster, listByPs);
    await ended;
    expect(existsSync(join(cluster, "postmaster.pid"))).toBe(false);
  },
);

test("only the cluster's own processes are taken for its server, below a folder with blanks too", async () => {
  const own = "/Users/a b/bin/postgres -D /Users/a b/data -c port=1 -c cluster_name=jobwheel-1-2";
  const others = [
    "/bin/postgres -D /data -c cluster_name=jobwheel-1-23",
    "postgres: jobwheel-1-23: walwriter",
    "grep cluster_name=jobwheel-1-2",
    "vi postgres.ts cluster_name=jobwheel-1-2",
  ];
  const listed: string[][] = [[...others, own], [...others, "postgres: jobwheel-1-2: walwriter"], others];
  // No process has these pids.
  const list: ListProcesses = () =>
    (listed.shift() ?? []).map((command, n) => ({ pid: 2 ** 30 + n, command }));
  await endPredecessor("jobwheel-1-2", join(dataDir, "none"), list);
  expect(listed).toEqual([]);
});
