import { describe, expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { dirname, join, normalize } from "node:path";
import { Glob } from "bun";
import { JOB_STATUSES } from "../shared/domain/job.ts";
import { RUN_STATUSES } from "../shared/domain/run.ts";
import { ENDPOINT_STATUSES } from "../shared/domain/webhook.ts";

const root = dirname(import.meta.dir);
const ROOM = "shared/domain";
const page = readFileSync(join(root, ROOM, "README.md"), "utf8");
const sources = new Map(
  [...new Glob("{services,shared}/**/*.{ts,tsx}").scanSync({ cwd: root })]
    .filter((file) => !/(?:\.test|test-support)\.ts$/.test(file))
    .map((file) => [file, readFileSync(join(root, file), "utf8")]),
);

/** What the product's files import from each other, as "name of file". Names of types alone are left out. */
const imported = new Set(
  [...sources].flatMap(([importer, source]) =>
    [...source.matchAll(/\bimport \{([^}]*)\} from "(\.[^"]+)"/g)].flatMap(([, names = "", path = ""]) => {
      const file = normalize(join(dirname(importer), path));
      return names.split(",").map((name) => `${name.trim().split(" as ")[0]} of ${file}`);
    }),
  ),
);

interface Rule {
  rule: string;
  first: string;
  deciders: { name: string; file: string }[];
}

const fileOf = (link: string) => normalize(join(ROOM, link));
/**
 * The rows of the page's table. A name is defined in the file that is linked behind it, or else in the one to open
 * first.
 */
const rules = page
  .split("\n")
  .filter((line) => /^\| .*\]\(/.test(line))
  .map((line): Rule => {
    const [, rule = "", open = "", decides = ""] = line.split("|").map((cell) => cell.trim());
    const first = fileOf(/\]\(([^)]+)\)/.exec(open)?.[1] ?? "");
    const named = [...decides.matchAll(/`(\w+)`(?: \(\[[^\]]+\]\(([^)]+)\)\))?/g)];
    const deciders = named.map(([, name = "", link]) => ({ name, file: link ? fileOf(link) : first }));
    return { rule, first, deciders };
  });

test("no function and no constant of the domain is there for its tests alone", () => {
  const isComment = /\/\*[\s\S]*?\*\/|^\s*\/\/.*$/gm;
  const unused = [...sources]
    .filter(([file]) => file.startsWith(`${ROOM}/`))
    .flatMap(([file, source]) => {
      const code = source.replace(isComment, "");
      return [...code.matchAll(/^export (?:async )?(?:function\*?|const) (\w+)/gm)]
        .map(([, name = ""]) => ({ name, uses: code.match(new RegExp(`\\b${name}\\b`, "g")) ?? [] }))
        .filter(({ name, uses }) => !imported.has(`${name} of ${file}`) && uses.length < 2)
        .map(({ name }) => `${name} of ${file}`);
    });
  expect(unused).toEqual([]);
});

describe("the page of the rules", () => {
  test.each([
    ...[
      "run_at",
      "success",
      "Retry-After",
      "refused URLs",
      "endpoint disabled",
      "pause against a due firing",
    ],
    ...["quota at the month's edge", "the rate window", "idempotency", "cursors", "cancel", "manual retry"],
  ])("has %s", (name) => {
    expect(rules.filter(({ rule }) => rule.includes(name))).not.toEqual([]);
  });

  test.each(rules)("names what decides on $rule, and the service calls it", ({ first, deciders }) => {
    expect(deciders).not.toEqual([]);
    for (const { name, file } of deciders) {
      expect(sources.get(file)).toMatch(new RegExp(`^export (?:async )?(?:function|const) ${name}\\b`, "m"));
      expect({ name, isCalled: imported.has(`${name} of ${file}`) }).toEqual({ name, isCalled: true });
      // A reader who opens the first file is sent to the one that decides.
      if (file !== first) expect(sources.get(first)).toContain(file.replace(/^shared\//, ""));
    }
  });

  test.each([
    ["A job.", JOB_STATUSES],
    ["A run,", RUN_STATUSES],
    ["A webhook endpoint.", ENDPOINT_STATUSES],
  ] as const)("draws all states: %s", (begin, statuses) => {
    const section = page.slice(page.indexOf(`\n${begin}`));
    const diagram = section.slice(0, section.indexOf("\n```\n"));
    const states = [...diagram.matchAll(/^ {2}(\S+) --> ([\w[\]*]+)/gm)].flatMap(([, from, to]) => [
      from,
      to,
    ]);
    expect(new Set(states.filter((state) => state !== "[*]"))).toEqual(new Set<string>(statuses));
  });
});
