import type { ComponentChildren } from "preact";
import type { PageName } from "../paths.ts";

/** The icons. All are drawn on a grid of 16 with one stroke, so that they look alike. */

function Icon({ children }: { children: ComponentChildren }) {
  return (
    <svg
      class="icon"
      viewBox="0 0 16 16"
      fill="none"
      stroke="currentColor"
      stroke-width="1.5"
      stroke-linecap="round"
      stroke-linejoin="round"
      aria-hidden="true"
    >
      {children}
    </svg>
  );
}

const PATHS: Record<PageName, string> = {
  overview: "M2 13V8M6 13V3M10 13V6M14 13V9",
  jobs: "M2.5 4h11M2.5 8h11M2.5 12h7",
  runs: "M5 3l7 5-7 5z",
  schedules: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12zM8 5v3.2l2 1.6",
  bulk: "M8 2l6 3-6 3-6-3zM2 8.2l6 3 6-3M2 11.2l6 3 6-3",
  webhooks: "M2 8h9M8 4.5L11.5 8 8 11.5M14 3v10",
  flows: "M2 4h3.5c3 0 2 8 5 8H14M2 12h3.5M10.5 4H14",
  hosts: "M3 3h10v4H3zM3 9h10v4H3zM5.5 5h.01M5.5 11h.01",
  usage: "M8 2a6 6 0 1 0 6 6H8z",
  keys: "M7.5 8A2.75 2.75 0 1 1 2 8a2.75 2.75 0 0 1 5.5 0zM7.5 8H14v2.5M11.2 8v2",
};

export function PageIcon({ page }: { page: PageName }) {
  return (
    <Icon>
      <path d={PATHS[page]} />
    </Icon>
  );
}

export function Wheel() {
  return (
    <svg
      viewBox="0 0 24 24"
      fill="none"
      stroke="currentColor"
      stroke-width="2"
      stroke-linecap="round"
      aria-hidden="true"
    >
      <circle cx="12" cy="12" r="9" />
      <path d="M12 3v4M12 17v4M3 12h4M17 12h4M12 12l4.5-4.5" />
      <circle cx="12" cy="12" r="1.6" fill="currentColor" />
    </svg>
  );
}

export function MenuIcon() {
  return (
    <Icon>
      <path d="M2 4h12M2 8h12M2 12h12" />
    </Icon>
  );
}
