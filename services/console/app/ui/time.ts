import { signal } from "@preact/signals";
import type { TimeStyle } from "../data/preferences.ts";

/** How instants and spans are written. */

/** The browser's clock, once a second while the page is seen. Milliseconds since 1970. */
export const now = signal(Date.now());
setInterval(() => {
  if (!document.hidden) now.value = Date.now();
}, 1_000);
document.addEventListener("visibilitychange", () => {
  now.value = Date.now();
});

const two = (value: number) => String(value).padStart(2, "0");

/** Such as `2026-11-25 06:50:05Z`. */
export function utcText(at: Date): string {
  return `${at.toISOString().slice(0, 19).replace("T", " ")}Z`;
}

/** Such as `2026-11-25 07:50:05`, on the clock of this browser. */
export function localText(at: Date): string {
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${day} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

/** Such as `3 min ago` or `in 2 h`. */
export function relativeText(at: Date, nowMs: number): string {
  const ms = at.getTime() - nowMs;
  const text = spanText(Math.abs(ms));
  if (Math.abs(ms) < 1_000) return "now";
  return ms < 0 ? `${text} ago` : `in ${text}`;
}

/** The largest unit alone, such as `3 min`. */
function spanText(ms: number): string {
  const seconds = Math.floor(ms / 1_000);
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3_600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3_600)} h`;
  const days = Math.floor(seconds / 86_400);
  return days < 365 ? `${days} d` : `${(days / 365.25).toFixed(1)} years`;
}

export function instantText(at: Date, style: TimeStyle, nowMs: number): string {
  switch (style) {
    case "relative":
      return relativeText(at, nowMs);
    case "local":
      return localText(at);
    case "utc":
      return utcText(at);
  }
}

/** Such as `850 ms`, `2.40 s` or `3 min 5 s`. Null is a dash. */
export function durationText(ms: number | null): string {
  if (ms === null) return "–";
  if (ms < 1_000) return `${ms} ms`;
  if (ms < 60_000) return `${(ms / 1_000).toFixed(ms % 1_000 === 0 ? 0 : 2)} s`;
  const seconds = Math.round(ms / 1_000);
  if (seconds < 3_600) return twoUnits(seconds, 60, "min", 1, "s");
  return seconds < 86_400
    ? twoUnits(seconds, 3_600, "h", 60, "min")
    : twoUnits(seconds, 86_400, "d", 3_600, "h");
}

function twoUnits(
  seconds: number,
  large: number,
  largeName: string,
  small: number,
  smallName: string,
): string {
  const rest = Math.floor((seconds % large) / small);
  return `${Math.floor(seconds / large)} ${largeName}${rest === 0 ? "" : ` ${rest} ${smallName}`}`;
}

const counts = new Intl.NumberFormat("en");
export function countText(count: number): string {
  return counts.format(count);
}

export function percentText(part: number, whole: number): string {
  if (whole === 0) return "–";
  const percent = (part / whole) * 100;
  // 99.97 % must not be rounded to 100 %.
  if (percent > 99.9 && percent < 100) return `${(Math.floor(percent * 100) / 100).toFixed(2)} %`;
  return `${percent.toFixed(percent >= 10 || percent === 0 ? 1 : 2).replace(/\.0$/, "")} %`;
}
