/** A port that a service is to listen on, and the setting that names it. */
export interface ListenAt {
  setting: "PORT" | "OPS_PORT";
  host: string;
  port: number;
}

/**
 * Starts a server. If its port or its address cannot be used, one sentence on stderr says so and the process ends with 1.
 * `beforeExit` stops what must not be left behind.
 */
export async function listenOrExit<Server>(
  at: ListenAt,
  listen: () => Server | Promise<Server>,
  beforeExit: () => Promise<void> = async () => undefined,
): Promise<Server> {
  try {
    return await listen();
  } catch (error) {
    const sentence = sentenceFor(error, at);
    if (sentence === null) throw error;
    process.stderr.write(`${sentence}\n`);
    await beforeExit();
    process.exit(1);
  }
}

/** Checks that the port can be used now, without a server that stays. If not, the process ends as in listenOrExit. */
export async function checkPortOrExit(at: ListenAt): Promise<void> {
  const { host: hostname, port } = at;
  const fetch = () => new Response();
  await listenOrExit(at, () => Bun.serve({ hostname, port, reusePort: false, fetch }).stop(true));
}

function sentenceFor(error: unknown, { setting, host, port }: ListenAt): string | null {
  switch (error instanceof Error ? (error as { code?: unknown }).code : null) {
    case "EADDRINUSE":
      return `Port ${port} of ${host} is in use by another process: stop that one, or set ${setting} to another port.`;
    case "EACCES":
      return `Port ${port} of ${host} is not for this account: set ${setting} to a port from 1024 on.`;
    case "EADDRNOTAVAIL":
      return `${host} is no address of this machine: set HOST to one that is, such as 127.0.0.1 or 0.0.0.0.`;
    default:
      return null;
  }
}
