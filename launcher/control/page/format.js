// Formats numbers as text. The page's times are microseconds since its origin.

const pad = (number, digits = 2) => String(number).padStart(digits, "0");

/** Formats a time as "14:03:07", with the fraction that a step of this many microseconds needs. */
function clockText(origin, micros, step = 1e6) {
  const date = new Date(origin * 1000 + Math.floor(micros / 1000));
  const text = `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
  if (step >= 1e6) return text;
  const fraction = pad(((micros % 1e6) + 1e6) % 1e6 | 0, 6);
  return `${text}.${fraction.slice(0, step >= 1000 ? 3 : 6)}`;
}

/** Formats a duration as "12 µs", "3.4 ms", "1.20 s" or "3 min 20 s". */
function durationText(micros) {
  if (micros < 1000) return `${Math.round(micros)} µs`;
  if (micros < 1e6) return `${(micros / 1000).toFixed(micros < 1e4 ? 2 : 1)} ms`;
  if (micros < 6e7) return `${(micros / 1e6).toFixed(2)} s`;
  const seconds = Math.round(micros / 1e6);
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
}

function bytesText(count) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (count >= 999.95 && unit < units.length - 1) {
    count /= 1000;
    unit += 1;
  }
  return `${unit ? count.toFixed(1) : count} ${units[unit]}`;
}

const countText = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
