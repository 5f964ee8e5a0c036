// Numbers, times and sizes as text. Every one carries its unit.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const clockTime = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const shortTime = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
const fullTime = new Intl.DateTimeFormat("en-GB", {
  year: "numeric",
  month: "short",
  day: "numeric",
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  timeZoneName: "short",
});

/** What stands where a value is not known. */
export const UNKNOWN = "–";

type Maybe = number | null | undefined;

function known(value: Maybe): value is number {
  return typeof value === "number" && Number.isFinite(value);
}

/** A count: `12,345`. */
export function count(value: Maybe): string {
  return known(value) ? whole.format(value) : UNKNOWN;
}

/** A count with its noun: `1 update`, `2 updates`. */
export function counted(value: Maybe, one: string, many = one + "s"): string {
  return known(value) ? `${whole.format(value)} ${value === 1 ? one : many}` : UNKNOWN;
}

function digits(value: number): string {
  const shown = value < 10 ? Math.round(value * 10) / 10 : Math.round(value);
  return whole.format(Math.trunc(shown)) + (shown % 1 ? "." + Math.round((shown % 1) * 10) : "");
}

const BYTE_UNITS = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];

/** Bytes in powers of 1,000: `1.5 MB`. */
export function bytes(value: Maybe): string {
  if (!known(value)) return UNKNOWN;
  let rest = Math.abs(value);
  let unit = 0;
  while (rest >= 999.5 && unit < BYTE_UNITS.length - 1) {
    rest /= 1000;
    unit += 1;
  }
  return `${value < 0 ? "−" : ""}${unit === 0 ? whole.format(rest) : digits(rest)} ${BYTE_UNITS[unit]}`;
}

/** A duration of milliseconds in at most two units: `3.2 ms`, `1.4 s`, `4 min 10 s`, `2 d 3 h`. */
export function duration(ms: Maybe): string {
  if (!known(ms)) return UNKNOWN;
  const value = Math.max(0, ms);
  if (value < 999.5) return `${digits(value)} ms`;
  if (value < 59_950) return `${digits(value / 1000)} s`;
  const seconds = Math.round(value / 1000);
  if (seconds < 3600) return two(seconds, 60, "min", 1, "s");
  if (seconds < 86_400) return two(seconds, 3600, "h", 60, "min");
  return two(seconds, 86_400, "d", 3600, "h");
}

function two(seconds: number, big: number, bigUnit: string, small: number, smallUnit: string): string {
  const first = Math.floor(seconds / big);
  const second = Math.floor((seconds % big) / small);
  return second ? `${first} ${bigUnit} ${second} ${smallUnit}` : `${first} ${bigUnit}`;
}

/** The time since a moment, in one unit and without haste: `12 s`, `5 min`, `3 h`, `8 d`. */
export function age(at: Maybe, now: number): string {
  if (!known(at)) return UNKNOWN;
  const seconds = Math.max(0, Math.floor((now - at) / 1000));
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172_800) return `${Math.floor(seconds / 3600)} h`;
  return `${whole.format(Math.floor(seconds / 86_400))} d`;
}

/** `12 s ago`, `in 3 min`. */
export function ago(at: Maybe, now: number): string {
  if (!known(at)) return UNKNOWN;
  if (at > now + 1500) return `in ${age(now - (at - now), now)}`;
  return now - at < 1500 ? "just now" : `${age(at, now)} ago`;
}

/** A moment: the time of day today, with the date before today. */
export function moment(at: Maybe, now = Date.now()): string {
  if (!known(at)) return UNKNOWN;
  const date = new Date(at);
  const same = new Date(now).toDateString() === date.toDateString();
  return same ? clockTime.format(date) : `${day.format(date)} ${shortTime.format(date)}`;
}

/** The same without seconds, for axes. */
export function shortMoment(at: Maybe, now = Date.now()): string {
  if (!known(at)) return UNKNOWN;
  const date = new Date(at);
  const same = new Date(now).toDateString() === date.toDateString();
  return same ? shortTime.format(date) : `${day.format(date)} ${shortTime.format(date)}`;
}

/** Date, time and zone, for tooltips. */
export function full(at: Maybe): string {
  return known(at) ? fullTime.format(new Date(at)) : "not known";
}

/**
 * A share in per cent that never claims more than is true: 100 % only when all, 0 % only when none.
 */
export function share(part: Maybe, all: Maybe): string {
  if (!known(part) || !known(all) || all <= 0) return UNKNOWN;
  const percent = (part / all) * 100;
  if (part >= all) return "100 %";
  if (part <= 0) return "0 %";
  if (percent >= 99.9) return percent >= 99.99 ? "> 99.99 %" : `${(Math.floor(percent * 100) / 100).toFixed(2)} %`;
  if (percent >= 99) return `${(Math.floor(percent * 10) / 10).toFixed(1)} %`;
  if (percent < 0.1) return "< 0.1 %";
  if (percent < 10) return `${(Math.round(percent * 10) / 10).toFixed(1)} %`;
  return `${Math.round(percent)} %`;
}

/** How many times less: `3,250 times`. */
export function times(value: Maybe): string {
  return known(value) ? `${digits(value)} ×` : UNKNOWN;
}

/** A rate per minute. */
export function perMinute(value: Maybe): string {
  return known(value) ? `${digits(value)} /min` : UNKNOWN;
}

/** Bits per second from bytes in a time. */
export function bitRate(byteCount: Maybe, ms: Maybe): string {
  if (!known(byteCount) || !known(ms) || ms <= 0) return UNKNOWN;
  let rest = (byteCount * 8000) / ms;
  const units = ["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"];
  let unit = 0;
  while (rest >= 999.5 && unit < units.length - 1) {
    rest /= 1000;
    unit += 1;
  }
  return `${digits(rest)} ${units[unit]}`;
}

/** The first so many characters, never half of a surrogate pair. */
export function cut(text: string, most: number): string {
  if (text.length <= most) return text;
  const end = /[\uD800-\uDBFF]/.test(text[most - 1] ?? "") ? most - 1 : most;
  return text.slice(0, end) + "…";
}
