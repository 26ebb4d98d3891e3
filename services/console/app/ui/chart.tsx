import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { themeChanges, timeStyle } from "../data/preferences.ts";
import { SCROLLABLE, type Tone } from "./small.tsx";
import { localText, utcText } from "./time.ts";

/** Figures over time. The same figures can be read as a table below it. */

export interface Series {
  name: string;
  tone: Tone;
  /** One for each instant; null leaves a gap. */
  values: readonly (number | null)[];
  /** A line of dashes, such as a target. */
  isDashed?: boolean;
}

export interface ChartProps {
  label: string;
  /** Milliseconds since 1970, in their order. */
  instants: readonly number[];
  series: readonly Series[];
  /** Bars are stacked, the first series at the bottom. */
  kind: "bars" | "lines";
  /** Writes a value, on the axis too. */
  textOf: (value: number) => string;
  /** Whether the axis of the values is logarithmic. */
  isLogarithmic?: boolean;
  /** Shows UTC whatever the visitor likes, since the instants are days of UTC. */
  isUtc?: boolean;
}

const HEIGHT = 190;
const AXIS_FONT = "11px system-ui, sans-serif";
/** The part of its place that a bar takes, and its largest width in pixels. */
const BAR_SIZE: [number, number] = [0.78, 48];

export function Chart(props: ChartProps) {
  const { label, instants, series, textOf } = props;
  const element = useRef<HTMLDivElement>(null);
  const [pointed, setPointed] = useState<number | null>(null);
  const isUtc = props.isUtc || timeStyle.value === "utc";
  const drawn = `${themeChanges.value} ${isUtc}`;
  useEffect(() => {
    const parent = element.current;
    if (parent === null) return;
    const plot = draw(parent, props, isUtc, setPointed);
    const observer = new ResizeObserver(() => plot.setSize({ width: parent.clientWidth, height: HEIGHT }));
    observer.observe(parent);
    return () => {
      observer.disconnect();
      plot.destroy();
    };
  }, [drawn, instants, series]);
  const timeOf = (index: number) => {
    const at = new Date(instants[index] ?? 0);
    return (isUtc ? utcText(at) : localText(at)).slice(0, 16).replace(/$/, isUtc ? "Z" : "");
  };
  const shown = (values: Series["values"], index: number) => {
    const value = values[index] ?? null;
    return value === null ? "–" : textOf(value);
  };
  return (
    <figure class="chart" aria-label={label}>
      <ul class="chart-legend" aria-hidden="true">
        {series.map(({ name, tone, values }) => (
          <li key={name}>
            <span class={`swatch ${tone}`} />
            {name}
            {pointed !== null && <span class="number">{shown(values, pointed)}</span>}
          </li>
        ))}
        {pointed !== null && <li class="number">{timeOf(pointed)}</li>}
      </ul>
      <div class="chart-plot" ref={element} aria-hidden="true" />
      <details class="chart-table">
        <summary>As a table</summary>
        <section {...SCROLLABLE} aria-label={`${label}, as a table`}>
          <table>
            <thead>
              <tr>
                <th scope="col">{isUtc ? "UTC" : "Local time"}</th>
                {series.map(({ name }) => (
                  <th scope="col" key={name}>
                    {name}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {instants.map((instant, index) => (
                <tr key={instant}>
                  <th scope="row">{timeOf(index)}</th>
                  {series.map(({ name, values }) => (
                    <td key={name}>{shown(values, index)}</td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </section>
      </details>
    </figure>
  );
}

function draw(
  parent: HTMLElement,
  props: ChartProps,
  isUtc: boolean,
  onPoint: (index: number | null) => void,
): uPlot {
  const { instants, series, kind, textOf, isLogarithmic } = props;
  const styles = getComputedStyle(document.documentElement);
  const colour = (name: string) => colourOf(styles, name);
  const isBars = kind === "bars";
  const values = isBars ? stack(series) : series.map((one) => [...one.values]);
  const axis = { stroke: colour("--muted"), font: AXIS_FONT, ticks: { show: false } };
  const bars = uPlot.paths.bars?.({ size: BAR_SIZE, radius: 0.12 });
  const plotted = series.map((one, index) => {
    const fill = colour(`--chart-${one.tone}`);
    return {
      index,
      options: isBars
        ? { fill, stroke: fill, width: 0, points: { show: false }, ...(bars && { paths: bars }) }
        : {
            stroke: fill,
            width: 1.75,
            points: { show: isSparse(one), size: 4, fill },
            ...(one.isDashed && { dash: [4, 4] }),
          },
    };
  });
  // The whole stack is drawn first, and the lower ones over it.
  const ordered = isBars ? plotted.reverse() : plotted;
  return new uPlot(
    {
      width: parent.clientWidth,
      height: HEIGHT,
      padding: [8, 8, 0, 0],
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { show: !isBars } },
      ...(isUtc && { tzDate: (seconds: number) => uPlot.tzDate(new Date(seconds * 1_000), "Etc/UTC") }),
      scales: {
        x: { time: true, ...(isBars && { range: (_plot, min, max) => widen(instants, min, max) }) },
        y: isLogarithmic
          ? {
              distr: 3,
              range: (_plot, min, max) => [
                10 ** Math.floor(Math.log10(Math.max(min, 1))),
                10 ** Math.ceil(Math.log10(Math.max(max, 10))),
              ],
            }
          : { range: (_plot, _min, max) => [0, Math.max(max, 1) * 1.08] },
      },
      axes: [
        { ...axis, grid: { show: false }, size: 34, space: 64, values: timeTexts(isUtc) },
        {
          ...axis,
          size: 58,
          space: 34,
          grid: { stroke: colour("--line"), width: 1 },
          incrs: isLogarithmic ? undefined : WHOLE_STEPS,
          ...(isLogarithmic && {
            filter: (_plot: uPlot, splits: number[]) => splits.map(decadeOf),
            grid: { show: false },
          }),
          values: (_plot, splits) => splits.map((value) => (value === null ? "" : textOf(value))),
        },
      ] as uPlot.Axis[],
      series: [{}, ...ordered.map(({ options }) => options)] as uPlot.Series[],
      hooks: {
        setCursor: [
          (plot) =>
            onPoint(
              plot.cursor.left !== undefined && plot.cursor.left >= 0 ? (plot.cursor.idx ?? null) : null,
            ),
        ],
      },
    },
    [
      instants.map((instant) => instant / 1_000),
      ...ordered.map(({ index }) => values[index] ?? []),
    ] as uPlot.AlignedData,
    parent,
  );
}

/** A line needs two neighbours. Single values would not be seen without points. */
function isSparse({ values, isDashed }: Series): boolean {
  return !isDashed && values.filter((value) => value !== null).length < POINTS_SHOWN_MAX;
}

const POINTS_SHOWN_MAX = 40;

/** The value if it is a power of ten; null, which is not written, for any other. */
function decadeOf(value: number): number | null {
  return Math.abs(Math.log10(value) % 1) < 1e-9 ? value : null;
}

/** Hours and minutes, with the day below the first of each day; days alone where the steps are that long. */
function timeTexts(isUtc: boolean) {
  return (_plot: uPlot, splits: number[], _axis: number, _space: number, stepSeconds: number): string[] => {
    let before = "";
    return splits.map((seconds) => {
      const at = new Date(seconds * 1_000);
      const [day = "", time = ""] = (isUtc ? utcText(at) : localText(at)).split(" ");
      const monthDay = day.slice(5);
      const isNew = monthDay !== before;
      before = monthDay;
      if (stepSeconds >= DAY_SECONDS) return monthDay;
      return isNew ? `${time.slice(0, 5)}\n${monthDay}` : time.slice(0, 5);
    });
  };
}

const DAY_SECONDS = 86_400;

/** Steps of an axis that counts: 1, 2, 5, 10 and so on. */
const WHOLE_STEPS = Array.from({ length: 13 }, (_, power) =>
  [1, 2, 5].map((step) => step * 10 ** power),
).flat();

/** Half a bar of room at both ends. Seconds since 1970. */
function widen(instants: readonly number[], min: number, max: number): [number, number] {
  const step = instants.length > 1 ? ((instants[1] ?? 0) - (instants[0] ?? 0)) / 1_000 : 60;
  return [min - step / 2, max + step / 2];
}

/** Stacks each series on those before it. */
function stack(series: readonly Series[]): number[][] {
  const sums: number[] = [];
  return series.map(({ values }) =>
    values.map((value, index) => {
      const sum = (sums[index] ?? 0) + (value ?? 0);
      sums[index] = sum;
      return sum;
    }),
  );
}

/** A canvas takes no `light-dark()`, so the browser is asked for the resulting colour. */
function colourOf(styles: CSSStyleDeclaration, name: string): string {
  const probe = document.createElement("span");
  probe.style.color = styles.getPropertyValue(name);
  document.body.append(probe);
  const colour = getComputedStyle(probe).color;
  probe.remove();
  return colour;
}
