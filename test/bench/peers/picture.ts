/** A picture of lines as SVG, readable on light and dark pages. It consists of text, lines and circles only. */

export interface Line {
  name: string;
  points: [x: number, y: number][];
}

export interface Axis {
  label: string;
  isLogarithmic?: boolean;
}

const [WIDTH, HEIGHT] = [720, 380];
const [LEFT, RIGHT, TOP, BOTTOM] = [72, 176, 48, 56];
/** The lines' colours in their order, distinct also for colour-blind readers (Okabe and Ito). */
const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00"];
const DASHES = ["", "8 4", "2 4", "12 4 2 4", "4 2"];
const STYLE = `
svg { font: 13px system-ui, sans-serif; }
.page { fill: #fff; } .ink { fill: #1f2328; } .grid { stroke: #d1d9e0; }
@media (prefers-color-scheme: dark) { .page { fill: #0d1117; } .ink { fill: #e6edf3; } .grid { stroke: #3d444d; } }`;

export function drawLines(title: string, xAxis: Axis, yAxis: Axis, lines: readonly Line[]): string {
  const across = scale(
    xAxis,
    lines.flatMap(({ points }) => points.map(([x]) => x)),
    [LEFT, WIDTH - RIGHT],
  );
  const up = scale(
    yAxis,
    lines.flatMap(({ points }) => points.map(([, y]) => y)),
    [HEIGHT - BOTTOM, TOP],
  );
  const [bottom, right] = [HEIGHT - BOTTOM, WIDTH - RIGHT];
  const text = (x: number, y: number, words: string, attributes = "") =>
    `<text class="ink" x="${x}" y="${y}" ${attributes}>${escapeText(words)}</text>`;
  const rule = (x1: number, y1: number, x2: number, y2: number) =>
    `<line class="grid" x1="${round(x1)}" y1="${round(y1)}" x2="${round(x2)}" y2="${round(y2)}"/>`;
  const parts = [
    ...across.ticks.flatMap((tick) => [
      rule(across.place(tick), TOP, across.place(tick), bottom),
      text(round(across.place(tick)), bottom + 18, shorten(tick), 'text-anchor="middle"'),
    ]),
    ...up.ticks.flatMap((tick) => [
      rule(LEFT, up.place(tick), right, up.place(tick)),
      text(LEFT - 8, round(up.place(tick)) + 4, shorten(tick), 'text-anchor="end"'),
    ]),
    text(LEFT, 28, title, 'font-weight="600"'),
    text((LEFT + right) / 2, HEIGHT - 14, xAxis.label, 'text-anchor="middle"'),
    text(-(TOP + bottom) / 2, 18, yAxis.label, 'text-anchor="middle" transform="rotate(-90)"'),
    ...lines.map(({ name, points }, index) => {
      const colour = COLOURS[index % COLOURS.length] ?? "";
      const places = points.map(([x, y]) => [round(across.place(x)), round(up.place(y))] as const);
      const path = places.map((place) => place.join(",")).join(" ");
      const stroke = `fill="none" stroke="${colour}" stroke-width="2" stroke-dasharray="${DASHES[index % DASHES.length]}"`;
      const y = TOP + 8 + index * 22;
      return [
        `<polyline points="${path}" ${stroke}/>`,
        ...places.map(([cx, cy]) => `<circle cx="${cx}" cy="${cy}" r="3.5" fill="${colour}"/>`),
        `<polyline points="${right + 16},${y} ${right + 44},${y}" ${stroke}/>`,
        text(right + 50, y + 4, name),
      ].join("\n");
    }),
  ];
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${HEIGHT}" role="img">
<title>${escapeText(title)}</title>
<style>${STYLE}
</style>
<rect class="page" width="100%" height="100%"/>
${parts.join("\n")}
</svg>
`;
}

interface Scale {
  place(value: number): number;
  ticks: number[];
}

/** A linear axis begins at 0. A logarithmic axis shows 0 at its lowest tick. */
function scale({ isLogarithmic = false }: Axis, values: number[], [from, to]: [number, number]): Scale {
  const positive = values.filter((value) => value > 0);
  const most = Math.max(...positive, Number.MIN_VALUE);
  if (!isLogarithmic) {
    const step = niceStep(most / 5);
    const end = Math.ceil(most / step) * step;
    const ticks = Array.from({ length: Math.round(end / step) + 1 }, (_, index) => index * step);
    return { ticks, place: (value) => from + ((to - from) * value) / end };
  }
  const least = Math.min(...positive);
  const decades = Array.from({ length: 12 }, (_, index) => 10 ** (Math.floor(Math.log10(least)) + index));
  const steps = decades.flatMap((decade) => [decade, 2 * decade, 5 * decade]);
  const [low, high] = [
    steps.findLast((step) => step <= least) ?? 1,
    steps.find((step) => step >= most) ?? 10,
  ];
  const ticks = steps.filter((step) => step >= low && step <= high);
  const span = Math.log10(high / low) || 1;
  const place = (value: number) => from + ((to - from) * Math.log10(Math.max(value, low) / low)) / span;
  return { ticks, place };
}

/** The first step of 1, 2 or 5 times a power of ten that is at least `least`. */
function niceStep(least: number): number {
  const power = 10 ** Math.floor(Math.log10(least));
  return power * ([1, 2, 5, 10].find((each) => each * power >= least) ?? 10);
}

const round = (place: number) => Math.round(place * 10) / 10;

function shorten(value: number): string {
  if (value >= 1_000_000) return `${value / 1_000_000} M`;
  if (value >= 1_000) return value.toLocaleString("en-US");
  return String(Number(value.toPrecision(3)));
}

const escapeText = (text: string) =>
  text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
