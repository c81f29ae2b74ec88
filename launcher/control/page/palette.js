// The kinds of spans, with their names and colours; the colours come from the style sheet, light or dark.

const KINDS = {
  1: { name: "call", variable: "--call", value: (value) => countText(value, "rank"), about: "call that is made" },
  2: { name: "serve", variable: "--serve", about: "call that is run" },
  3: { name: "send", variable: "--send", value: bytesText, about: "message out" },
  4: { name: "recv", variable: "--recv", about: "message in" },
  5: { name: "put", variable: "--put", value: bytesText, about: "into a channel" },
  6: { name: "get", variable: "--get", about: "from a channel" },
  7: { name: "weights", variable: "--weights", value: (value) => `version ${value}`, about: "version on its way" },
  8: { name: "wait", variable: "--wait", about: "other wait, as for a lock" },
  9: { name: "worker_timer", variable: "--span", about: "span of the user's" },
};
const UNKNOWN = { name: "?", variable: "--wait", about: "" };

const kindOf = (number) => KINDS[number % FAILED] ?? UNKNOWN;

class Palette {
  constructor() { this.read(); }

  /** Reads the colours again after a change of theme. */
  read() {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    for (const name of ["text", "muted", "line", "panel", "raised", "bubble", "bubble-line", "failed", "accent", "on-span"]) this[name] = colour(`--${name}`);
    this.kinds = new Map(Object.entries(KINDS).map(([number, kind]) => [Number(number), colour(kind.variable)]));
    this.unknown = colour("--wait");
  }

  of(kind) { return this.kinds.get(kind % FAILED) ?? this.unknown; }
}

function legend() {
  const entry = (variable, name, about) => {
    const swatch = element("i", { class: "swatch", "aria-hidden": "true" });
    swatch.style.background = `var(${variable})`;
    return element("span", { title: about }, swatch, name);
  };
  const kinds = Object.values(KINDS).map((kind) => entry(kind.variable, kind.name, kind.about));
  return [...kinds, entry("--bubble-line", "bubble", "serves no call, or its calls only wait"), entry("--failed", "failed", "ended with an error")];
}
