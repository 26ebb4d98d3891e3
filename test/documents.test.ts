import { expect, test } from "bun:test";
import { existsSync, readFileSync, statSync } from "node:fs";
import { dirname, join } from "node:path";
import { Glob } from "bun";

const ROOT = dirname(import.meta.dir);
const read = (path: string) => readFileSync(join(ROOT, path), "utf8");
const pages = [...new Glob("**/*.md").scanSync({ cwd: ROOT, dot: true })].filter(
  (path) => !/^(node_modules|\.cache|\.data|\.git)\//.test(path),
);

/** The anchors that GitHub and GitLab make for titles. */
const anchorsOf = (page: string) =>
  [...page.matchAll(/^#+ (.*)$/gm)].map(([, title = ""]) =>
    title
      .toLowerCase()
      .replace(/[^\w\- ]/g, "")
      .replaceAll(" ", "-"),
  );

test("every link of a page leads to a file, and to a heading that it has", () => {
  const broken = pages.flatMap((page) => {
    const links = [...read(page).matchAll(/\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)/g)];
    return links.flatMap(([link, path = "", anchor]) => {
      const file = path === "" ? join(ROOT, page) : join(ROOT, dirname(page), path);
      if (!existsSync(file)) return [`${page}: ${link}`];
      const isPage = statSync(file).isFile() && file.endsWith(".md");
      const isThere =
        anchor === undefined || (isPage && anchorsOf(readFileSync(file, "utf8")).includes(anchor));
      return isThere ? [] : [`${page}: ${link}`];
    });
  });
  expect(broken).toEqual([]);
});

test("the picture of the README is the same in light and in dark, except for its colours", () => {
  const [light = "", dark = ""] = ["light", "dark"].map((mode) =>
    read(`docs/how-it-works-${mode}.svg`).replaceAll(/#[0-9a-f]{6}/g, "colour"),
  );
  expect(dark).toBe(light);
});
