import { GUESSED_CHARACTERS_MAX, KnownWords } from "../nearest.ts";

/**
 * The zone that an unknown name may stand for, such as `Europe/Berlim`, `America/New York` or `Berlin`. Null if there is no
 * such zone, or several. Offsets and abbreviations are not guessed, since `GMT+2` and `CST` mean different things to
 * different people.
 */
export function guessZone(text: string): string | null {
  if (text.length > GUESSED_CHARACTERS_MAX || /[0-9]/.test(text)) return null;
  known ??= readNames();
  const whole = known.names.nearest(text);
  if (whole !== null) return whole;
  const place = known.places.nearest(text.slice(text.lastIndexOf("/") + 1));
  const [name, ...others] = known.byPlace.get(place ?? "") ?? [];
  return name === undefined || others.length > 0 ? null : name;
}

let known: ReturnType<typeof readNames> | undefined;

/** The some 400 names in their canonical spelling, without those of offsets; also by their last part, such as Berlin. */
function readNames() {
  const names = Intl.supportedValuesOf("timeZone").filter((name) => !name.startsWith("Etc/"));
  const byPlace = Map.groupBy(names, (name) => name.slice(name.lastIndexOf("/") + 1));
  return { names: new KnownWords(names), places: new KnownWords(byPlace.keys()), byPlace };
}
