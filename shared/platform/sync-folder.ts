import { closeSync, fsyncSync, openSync } from "node:fs";

/** Writes the folder's entries to disk, so that a power cut does not undo a renaming or a new name in it. */
export function syncFolder(folder: string): void {
  const descriptor = openSync(folder, "r");
  try {
    fsyncSync(descriptor);
  } finally {
    closeSync(descriptor);
  }
}
