// Numbers, times and names as text. Pure.

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** A number with at most three significant digits below 100, and none after the point above. */
export function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e9) return `${trim(value / 1e9, 2)} G`;
  if (size >= 1e6) return `${trim(value / 1e6, 2)} M`;
  if (size >= 100) return WHOLE.format(value);
  if (size >= 10) return trim(value, 1);
  if (size >= 0.01) return trim(value, 2);
  return value.toPrecision(1);
}

function trim(value, digits) {
  return value.toFixed(digits).replace(/\.0+$|(\.\d*?)0+$/, "$1");
}

/** Milliseconds as a duration with its unit. */
export function duration(ms) {
  if (ms === null || ms === undefined || Number.isNaN(ms)) return "–";
  if (ms === 0) return "0";
  if (ms < 1) return `${number(ms * 1000)} µs`;
  if (ms < 1000) return `${number(ms)} ms`;
  if (ms < 120_000) return `${number(ms / 1000)} s`;
  return `${number(ms / 60_000)} min`;
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${number(value)} ${units[unit]}`;
}

export function percent(share) {
  return share === null || share === undefined || Number.isNaN(share) ? "–" : `${Math.round(share * 100)} %`;
}

export function count(value, word, words = `${word}s`) {
  return `${WHOLE.format(value)} ${value === 1 ? word : words}`;
}

/** The time of day of milliseconds since the epoch. */
export function clock(ms, withMillis = false) {
  const date = new Date(ms);
  const text = date.toTimeString().slice(0, 8);
  return withMillis ? `${text}.${String(date.getMilliseconds()).padStart(3, "0")}` : text;
}

export function ago(ms) {
  const seconds = Math.max(0, (Date.now() - ms) / 1000);
  if (seconds < 2) return "now";
  if (seconds < 120) return `${Math.round(seconds)} s ago`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 172_800) return `${Math.round(seconds / 3600)} h ago`;
  return new Date(ms).toISOString().slice(0, 10);
}

export function shape(dims) {
  return `[${dims.map((size) => (Number(size) === -1 ? "?" : size)).join(", ")}]`;
}
