// Formatting of numbers and dates.

/** Format with three digits: 0.12, 1.23, 45.6, 789, 1,234. */
export function number(value) {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(size < 1 ? 2 : 3)));
}

/** Format bytes in kB, MB or GB. */
export function bytes(value) {
  if (!Number.isFinite(value)) return "–";
  const step = [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]].find(([size]) => value >= size) ?? [1, "B"];
  return `${number(value / step[0])} ${step[1]}`;
}

/** Format a parameter count: 135 M, 7.24 B. */
export function parameters(value) {
  return value >= 1e9 ? `${number(value / 1e9)} B` : `${number(value / 1e6)} M`;
}

/** Format milliseconds: 194 ms, 2.31 s, 3 min. */
export function duration(ms) {
  if (!Number.isFinite(ms)) return "–";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  return ms < 90_000 ? `${number(ms / 1000)} s` : `${number(ms / 60_000)} min`;
}

/** Format a share in percent. */
export const percent = (share) => (Number.isFinite(share) ? `${Math.round(share * 100)} %` : "–");

/** Return the group of a day: Today, Yesterday, This week, or its month. */
export function day(time, now = Date.now()) {
  const start = new Date(now).setHours(0, 0, 0, 0);
  if (time >= start) return "Today";
  if (time >= start - 86_400_000) return "Yesterday";
  if (time >= start - 6 * 86_400_000) return "This week";
  return new Date(time).toLocaleDateString("en", { month: "long", year: "numeric" });
}
