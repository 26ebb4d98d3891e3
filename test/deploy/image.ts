import { cpSync, mkdirSync, readFileSync, symlinkSync } from "node:fs";
import { dirname, join } from "node:path";
import { DEPLOY } from "./manifests.ts";

const ROOT = dirname(DEPLOY);

/** The image that deploy/Containerfile describes, as far as it can be followed without building it. */
export interface Image {
  /** The paths that the last stage copies, from the root of the checkout. */
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

/**
 * Fills the folder with the image's files, leaving out tests and everything else that the image leaves out. The
 * packages are linked.
 */
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
