import { cpSync, mkdirSync, readFileSync, symlinkSync } from "node:fs";
import { dirname, join } from "node:path";
import { DEPLOY } from "./manifests.ts";

const ROOT = dirname(DEPLOY);

/** An image that deploy/Containerfile describes, as far as the file can be followed without a build. */
export interface Image {
  /** The paths that the image's stage copies, relative to the root of the checkout. */
  paths: string[];
  environment: Record<string, string>;
  /** The commands that the image's stage runs during the build, in the order of the file. */
  commands: string[];
  /** The words of the program that a container runs. */
  entrypoint: string[];
  healthCheck: string[];
}

/** Reads the stage of this name; without a name the last stage, which a build without a target builds. */
export function readImage(name?: string): Image {
  const stages = readFileSync(join(DEPLOY, "Containerfile"), "utf8").split(/^FROM /m);
  const stage =
    name === undefined ? stages.at(-1) : stages.find((text) => text.split("\n")[0]?.endsWith(` AS ${name}`));
  if (stage === undefined) throw new Error(`deploy/Containerfile has no stage ${name}`);
  const lines = stage.replaceAll("\\\n", "").split("\n");
  const textsOf = (instruction: string) =>
    lines
      .filter((line) => line.startsWith(`${instruction} `))
      .map((line) => line.slice(instruction.length + 1));
  const wordsOf = (text: string | undefined) =>
    JSON.parse(text?.slice(text.indexOf("[")) ?? "[]") as string[];
  return {
    paths: textsOf("COPY").flatMap((text) =>
      text.startsWith("--from=") ? [] : text.split(/\s+/).slice(0, -1),
    ),
    environment: Object.fromEntries(
      textsOf("ENV").flatMap((text) =>
        [...text.matchAll(/(\w+)=(?:"([^"]*)"|(\S*))/g)].map(([, key = "", quoted, plain = ""]) => [
          key,
          quoted ?? plain,
        ]),
      ),
    ),
    commands: textsOf("RUN"),
    entrypoint: [...wordsOf(textsOf("ENTRYPOINT")[0]), ...wordsOf(textsOf("CMD")[0])],
    healthCheck: wordsOf(textsOf("HEALTHCHECK")[0]),
  };
}

/**
 * Fills the folder with the image's files, without the files that Containerfile.dockerignore leaves out, such as tests.
 * Links the packages.
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
