import { expect, test } from "bun:test";

/** Runs a program that listens at `host`, and answers how it ended. */
function run(host: string, failure: string) {
  const program = `
    import { listenOrExit } from "./listen-or-exit.ts";
    const at = { setting: "OPS_PORT", host: "${host}", port: 9090 };
    const listen = () => { ${failure}; return Bun.serve({ hostname: "${host}", port: 0, fetch: () => new Response() }) };
    const server = await listenOrExit(at, listen, async () => { await Bun.sleep(0); console.log("stopped before") });
    console.log("listens");
    server.stop(true);`;
  const child = Bun.spawnSync([process.execPath, "-e", program], { cwd: import.meta.dir });
  return [child.exitCode, child.stdout.toString(), child.stderr.toString()];
}

test("a server that can listen does", () => {
  expect(run("127.0.0.1", "")).toEqual([0, "listens\n", ""]);
});

test("a port or an address that cannot be used is one sentence, behind the stop of what has started", () => {
  // TEST-NET-1 belongs to no machine.
  expect(run("192.0.2.1", "")).toEqual([
    1,
    "stopped before\n",
    "192.0.2.1 is no address of this machine: set HOST to one that is, such as 127.0.0.1 or 0.0.0.0.\n",
  ]);
  const refuse = (code: string) => `throw Object.assign(new Error("no"), { code: "${code}" })`;
  expect(run("127.0.0.1", refuse("EACCES"))[2]).toBe(
    "Port 9090 of 127.0.0.1 is not for this account: set OPS_PORT to a port from 1024 on.\n",
  );
  expect(run("127.0.0.1", refuse("EADDRINUSE"))[2]).toBe(
    "Port 9090 of 127.0.0.1 is in use by another process: stop that one, or set OPS_PORT to another port.\n",
  );
});

test("any other error is thrown on", () => {
  const [exitCode, stdout, stderr] = run("127.0.0.1", 'throw new Error("a bug")');
  expect([exitCode, stdout]).toEqual([1, ""]);
  expect(stderr).toContain("error: a bug");
});
