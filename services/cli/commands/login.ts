import { createClient } from "../../../shared/client/index.ts";
import type { Command } from "../command.ts";
import { profilesFile, saveProfile } from "../profiles.ts";
import { readLine } from "../terminal.ts";

const QUESTION = "Key (svc_dev_... or svc_live_...), which is not shown: ";

export const login: Command = {
  about: "keep a key; it is asked for, or read from stdin",
  options: { url: { value: "URL", about: "the service's address; without it http://127.0.0.1:8080" } },
  async run(input, session) {
    const { environment, profile, signal } = session;
    const url = input.option("url") ?? session.url;
    session.url = url;
    const apiKey = await readLine(QUESTION, session, { isShown: false });
    const project = await createClient({ baseUrl: url, apiKey }).project.get({ signal });
    saveProfile(profile, { url, key: apiKey }, environment);
    const kept = {
      ...{ profile, url, project: project.name, environment: project.environment },
      file: profilesFile(environment),
    };
    return { json: JSON.stringify(kept), text: { columns: [], rows: Object.entries(kept) } };
  },
};
