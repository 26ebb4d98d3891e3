import { createInterface } from "node:readline";
import { createClient } from "../../../shared/client/index.ts";
import type { Command, Session } from "../command.ts";
import { profilesFile, saveProfile } from "../profiles.ts";

export const login: Command = {
  about: "keep a key; it is asked for, or read from stdin",
  options: { url: { type: "string" } },
  async run(input, session) {
    const url = input.option("url") ?? session.url;
    const key = await readKey(session);
    const project = await createClient({ baseUrl: url, apiKey: key }).project.get({ signal: session.signal });
    saveProfile(session.profile, { url, key }, process.env);
    const { name, environment } = project;
    const kept = {
      profile: session.profile,
      url,
      project: name,
      environment,
      file: profilesFile(process.env),
    };
    return { json: JSON.stringify(kept), text: { columns: [], rows: Object.entries(kept) } };
  },
};

/** One line of stdin. A terminal does not show what is typed. */
async function readKey({ signal }: Session): Promise<string> {
  const { stdin, stderr } = process;
  const terminal = stdin.isTTY === true;
  if (terminal) stderr.write("Key (svc_dev_... or svc_live_...): ");
  const lines = createInterface({ input: stdin, terminal, historySize: 0 });
  signal.addEventListener("abort", () => lines.close());
  lines.on("SIGINT", () => process.kill(process.pid, "SIGINT"));
  try {
    for await (const line of lines) return line.trim();
    return "";
  } finally {
    lines.close();
    if (terminal) stderr.write("\n");
  }
}
