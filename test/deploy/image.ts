import { cpSync, mkdirSync, readFileSync, symlinkSync } from "node:fs";
import { dirname, join } from "node:path";
import { DEPLOY } from "./manifests.ts";

const ROOT = dirname(DEPLOY);

/** What deploy/Containerfile says of the image, as far as it can be followed without building one. */
export interface Image {
  /** From the root of the checkout, as the last stage copies it. */
  paths: string[];
  environment: Record<string, string>;
}

export function readImage(): Image {
  const stages = readFileSync(join(DEPLOY, "Containerfile"), "utf8").split(/^FROM /m);
  const lines = stages.at(-1)?.split("\n") ?? [];
  const wordsOf = (instruction: string) =>
    lines.filter((line) => line.startsWith(`${instruction} `)).map((line) => line.split(/\s+/).slice(1));
  return {
    paths: wordsOf("COPY").flatMap((words) => (words[0]?.startsWith("--from=") ? [] : words.slice(0, -1))),
    environment: Object.fromEntries(
      wordsOf("ENV")
        .flat()
        .map((word) => word.split("=") as [string, string]),
    ),
  };
}

/** Fills the folder with what the image holds, tests and all else that it leaves out left out. The packages are linked. */
export function layOut(image: Image, folder: string): void {
  const leftOut = readFileSync(join(DEPLOY, "Containerfile.dockerignore"), "utf8")
    .split("\n")
    .filter((line) => /^[^#!]/.test(line) && line !== "*")
    .map((pattern) => new Bun.Glob(pattern));
  mkdirSync(folder, { recursive: true });
  for (const path of image.paths) {
    cpSync(join(ROOT, path), join(folder, path), {
      recursive: true,
      filter: (source) => !leftOut.some((pattern) => pattern.match(source.slice(ROOT.length + 1))),
    });
  }
  symlinkSync(join(ROOT, "node_modules"), join(folder, "node_modules"));
}
