// What the charts compute before anything is drawn.

export interface Series {
  key: string;
  label: string;
  text: string;
  /** The name of a colour in app.css, as `--multicast`. */
  colour: string;
}

export interface Range {
  key: string;
  label: string;
  ms: number;
}

export const RANGES: readonly Range[] = [
  { key: "15m", label: "15 min", ms: 900_000 },
  { key: "1h", label: "1 h", ms: 3_600_000 },
  { key: "6h", label: "6 h", ms: 21_600_000 },
  { key: "24h", label: "24 h", ms: 86_400_000 },
  { key: "7d", label: "7 d", ms: 604_800_000 },
  { key: "30d", label: "30 d", ms: 2_592_000_000 },
];

export function rangeOf(key: string | null): Range {
  return RANGES.find((range) => range.key === key) ?? (RANGES[1] as Range);
}

export type Column = (number | null)[];

/**
 * Columns for the chart: times in seconds, and a column for each key. Where samples are missing
 * for longer than two steps a hole is put in, so that nothing is drawn that was not seen.
 */
export function columns<Key extends string>(points: readonly ({ at_ms: number } & Record<Key, number>)[], keys: readonly Key[], stepMs: number): { times: number[]; values: Column[] } {
  const times: number[] = [];
  const values: Column[] = keys.map(() => []);
  let last: number | null = null;
  for (const point of points) {
    if (last !== null && point.at_ms <= last) continue;
    if (last !== null && point.at_ms - last > 2 * stepMs) {
      times.push((last + stepMs) / 1000);
      for (const column of values) column.push(null);
    }
    times.push(point.at_ms / 1000);
    keys.forEach((key, at) => values[at]?.push(point[key]));
    last = point.at_ms;
  }
  return { times, values };
}

/** Running sums over the columns: the first stays, each other stands on those before it. */
export function stacked(values: readonly Column[]): Column[] {
  const sums: Column[] = [];
  values.forEach((column, at) => {
    const below = sums[at - 1];
    sums.push(column.map((value, row) => (value === null ? null : value + (below?.[row] ?? 0))));
  });
  return sums;
}

const timeOnly = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const withSeconds = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const dayOnly = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

/** The words at the time axis, for ticks in seconds that are so far apart. */
export function tickWords(splits: readonly number[], apart: number): string[] {
  return splits.map((at) => {
    const date = new Date(at * 1000);
    if (apart >= 86_400) return dayOnly.format(date);
    if (apart < 60) return withSeconds.format(date);
    return date.getHours() === 0 && date.getMinutes() === 0 ? dayOnly.format(date) : timeOnly.format(date);
  });
}
