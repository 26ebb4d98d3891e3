import { runCommandLine } from "./command-line.ts";

/** The operator's command line: `npm run --silent admin -- project create --name N --plan P --json`. */
const { code, stdout, stderr } = await runCommandLine(process.argv.slice(2), process.env);
process.stdout.write(stdout);
process.stderr.write(stderr);
process.exitCode = code;
