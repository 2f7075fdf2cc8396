// Numbers, durations and times as people read them.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}

export function count(value) {
  return isNumber(value) ? value.toLocaleString("en-US", { maximumFractionDigits: 0 }) : "–";
}

export function bytes(value) {
  if (!isNumber(value)) return "–";
  let size = value;
  let unit = 0;
  while (size >= 1024 && unit < UNITS.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit === 0 || size >= 100 ? Math.round(size) : size.toFixed(1)} ${UNITS[unit]}`;
}

export function rate(value) {
  if (!isNumber(value)) return "–";
  return `${value >= 10 || value === 0 ? count(value) : value.toFixed(1)}/s`;
}

export function seconds(value) {
  if (!isNumber(value)) return "–";
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 60) return `${value < 10 ? value.toFixed(1) : Math.round(value)} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
  if (value < 86400) return `${Math.floor(value / 3600)} h ${Math.round((value % 3600) / 60)} min`;
  return `${Math.floor(value / 86400)} d ${Math.round((value % 86400) / 3600)} h`;
}

export function time(ms) {
  if (!isNumber(ms)) return "–";
  return new Date(ms).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" });
}

export function ago(ms, now = Date.now()) {
  return isNumber(ms) ? `${seconds(Math.max(0, Math.round((now - ms) / 1000)))} ago` : "–";
}

export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

export function shown(value) {
  if (value === null || value === undefined) return "–";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
