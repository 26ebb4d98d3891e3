import { runCommandLine } from "../../../services/cli/command-line.ts";
import { useEveryCommand } from "./every-command.ts";

/** Logs in, and uses every command, on the terminal of this process. Its arguments: a folder, the service and a target. */
const [folder = "", url = "", echo = ""] = process.argv.slice(2);
const { env: environment, stdin, stdout, stderr } = process;
const { signal } = new AbortController();
await runCommandLine(["login", "--url", url], { environment, stdin, stdout, stderr, signal });
await useEveryCommand({ folder, echo, asJson: false, environment, stdin, stdout, stderr });
process.exit(0);
