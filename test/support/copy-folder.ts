/** Copies in another process, since this one has a load to keep up. Files that vanish meanwhile are not part of the copy. */
export async function copyFolder(from: string, to: string): Promise<void> {
  const child = Bun.spawn(["cp", "-a", from, to], {
    env: { LC_ALL: "C", PATH: process.env.PATH ?? "" },
    stderr: "pipe",
  });
  const [errors] = await Promise.all([child.stderr.text(), child.exited]);
  const others = errors
    .split("\n")
    .filter((line) => line !== "" && !line.endsWith("No such file or directory"));
  if (others.length > 0) throw new Error(others.join("\n"));
}
