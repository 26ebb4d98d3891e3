import { effect, type Signal, signal } from "@preact/signals";

/** The visitor's preferences for the display. They are no secrets, so they outlive the tab. */

export const TIME_STYLES = ["relative", "local", "utc"] as const;
export type TimeStyle = (typeof TIME_STYLES)[number];
export const timeStyle = kept("jobwheel.times", TIME_STYLES, "relative");

export const THEMES = ["system", "light", "dark"] as const;
export type Theme = (typeof THEMES)[number];
export const theme = kept("jobwheel.theme", THEMES, "system");

/** Whether lists and pages keep themselves up to date. */
export const live = kept("jobwheel.live", ["on", "off"] as const, "on");

/** Counts changes of the shown colours, so that charts are drawn anew. */
export const themeChanges = signal(0);

effect(() => {
  if (theme.value === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme.value;
  themeChanges.value = themeChanges.peek() + 1;
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  themeChanges.value++;
});

function kept<Value extends string>(name: string, values: readonly Value[], otherwise: Value): Signal<Value> {
  const found = values.find((value) => value === localStorage.getItem(name));
  const preference = signal(found ?? otherwise);
  effect(() => localStorage.setItem(name, preference.value));
  return preference;
}
