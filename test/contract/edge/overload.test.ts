import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import net from "node:net";
import { until } from "../../runtime-contract/until.ts";
import {
  readRefusal,
  startTestGateway,
  TARGET_URL,
  type TestGateway,
  type TestProject,
} from "../../support/gateway.ts";

/** The gateway's own REQUESTS_IN_PROGRESS_MAX and REQUESTS_OF_PROJECT_IN_PROGRESS_MAX. */
const IN_PROGRESS_MAX = 2_000;
const OF_PROJECT_IN_PROGRESS_MAX = 500;
/** The size of the largest batch, and the number of such batches that a project may have in progress. */
const BATCH_BYTES_MAX = 33_554_432;
const BATCHES_OF_PROJECT_MAX = 4;
const EVENTUALLY_MS_MAX = 60_000;
const TEST_TIMEOUT_MS = 300_000;

/** Longer than a slow machine takes to open all requests, so that none of them ends meanwhile. */
const RECEIVE_MS = 200_000;

let gateway: TestGateway;
let mate: Awaited<ReturnType<TestGateway["startMate"]>>;
let projects: TestProject[];
let bystander: TestProject;
const sockets: net.Socket[] = [];

beforeAll(async () => {
  gateway = await startTestGateway();
  mate = await gateway.startMate({ receiveMs: RECEIVE_MS });
  projects = await Promise.all(
    Array.from({ length: IN_PROGRESS_MAX / OF_PROJECT_IN_PROGRESS_MAX }, () => gateway.addProject()),
  );
  bystander = await gateway.addProject();
});
afterAll(async () => {
  for (const socket of sockets) socket.destroy();
  await mate.stop();
  await gateway.stop();
});

const show = (project: TestProject) =>
  gateway.call("GET", "/v2/project", { key: project.production, port: mate.port });

/** Sends as many requests without their bodies as one project may have in progress. */
function stall(project: TestProject): void {
  const head =
    "POST /v2/jobs HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\nContent-Length: 9\r\n" +
    `Authorization: Bearer ${project.production}\r\n\r\n`;
  const open = () => {
    const socket = net.connect(mate.port, "127.0.0.1", () => socket.write(head));
    socket.on("error", () => socket.destroy());
    // The gateway has refused this request because another one of the test was in progress; the test sends it again.
    socket.on("data", () => {
      socket.destroy();
      open();
    });
    sockets.push(socket);
  };
  for (let n = 0; n < OF_PROJECT_IN_PROGRESS_MAX; n++) open();
}

async function eventually(project: TestProject, status: number): Promise<void> {
  let answer = await show(project);
  await until(
    async () => {
      if (answer.status !== status) answer = await show(project);
      return answer.status === status;
    },
    () => `the answer is still ${answer.status}`,
    EVENTUALLY_MS_MAX,
  );
  if (status === 503) expect(readRefusal(answer, "service_unavailable").message).toContain("overloaded");
}

describe("requests whose bodies never come", () => {
  test(
    "of one project keep out that project alone",
    async () => {
      const [first] = projects;
      if (first === undefined) throw new Error("there is no project");
      stall(first);
      await eventually(first, 503);
      expect((await show(bystander)).status).toBe(200);
    },
    TEST_TIMEOUT_MS,
  );

  test(
    "of many projects are bounded in all, and everybody is served when they are gone",
    async () => {
      for (const project of projects.slice(1)) stall(project);
      await eventually(bystander, 503);
      for (const socket of sockets.splice(0)) socket.destroy();
      for (const project of [...projects, bystander]) await eventually(project, 200);
    },
    TEST_TIMEOUT_MS,
  );
});

describe("batches whose bodies never come", () => {
  test(
    "are bounded by their bytes, for one project and for all, and hold up nothing else",
    async () => {
      const stallBatch = (project: TestProject) =>
        new Promise<string>((resolve) => {
          const socket = net.connect(mate.port, "127.0.0.1", () =>
            socket.write(
              "POST /v2/jobs/batch HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n" +
                `Content-Length: ${BATCH_BYTES_MAX}\r\nAuthorization: Bearer ${project.production}\r\n\r\n`,
            ),
          );
          let text = "";
          socket.on("data", (chunk: Buffer) => {
            text += chunk.toString();
            if (text.includes('"error"')) socket.destroy();
          });
          socket.on("error", () => socket.destroy());
          socket.on("close", () => resolve(text));
          sockets.push(socket);
        });
      const [first, second, third] = await Promise.all([1, 2, 3].map(() => gateway.addProject()));
      if (first === undefined || second === undefined || third === undefined) throw new Error("no project");
      // One batch more than fits: the last batch is refused, and the others go on waiting for their bodies.
      const refused = (project: TestProject, count: number) =>
        Promise.race(Array.from({ length: count }, () => stallBatch(project)));
      expect(await refused(first, BATCHES_OF_PROJECT_MAX + 1)).toContain("overloaded");
      expect(await refused(second, BATCHES_OF_PROJECT_MAX + 1)).toContain("overloaded");
      expect(await stallBatch(third)).toContain("overloaded");
      const job = { target_url: TARGET_URL };
      const post = (path: string, body: object) =>
        gateway.call("POST", path, { key: third.production, port: mate.port, body });
      expect((await post("/v2/jobs", job)).status).toBe(201);
      const postBatch = (text: string) =>
        post("/v2/jobs/batch", { jobs: Array.from({ length: 10 }, () => ({ ...job, payload: { text } })) });
      const large = "x".repeat(200_000);
      expect((await postBatch("small")).status).toBe(201);
      readRefusal(await postBatch(large), "service_unavailable");
      for (const socket of sockets.splice(0)) socket.destroy();
      await until(
        async () => (await postBatch(large)).status === 201,
        () => "batches are still refused",
        EVENTUALLY_MS_MAX,
      );
    },
    TEST_TIMEOUT_MS,
  );
});
