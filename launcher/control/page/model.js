// The run as received in messages so far; it holds no more than the flight recorders hold.

const SPAN = 6; // numbers of a span: begin, duration (-1: open), name, kind (16 more: failed), lane, value
const BUBBLE = 2; // begin, duration
const FAILED = 16;

class Model {
  constructor() {
    this.origin = this.begin = this.end = 0;
    this.names = [];
    this.processes = new Map();
    this.sections = {};
    this.logs = new Map();
  }

  /** Applies a message; returns the names of the sections that it has changed. */
  apply(message) {
    Object.assign(this, { origin: message.origin, begin: message.begin, end: message.end });
    message.names.forEach((name, at) => { this.names[message.names_at + at] = name; });
    const before = this.processes;
    this.processes = new Map();
    const sorted = Object.entries(message.processes).sort(([, one], [, other]) => compareProcesses(one, other));
    for (const [key, told] of sorted) {
      const known = told.since === null ? undefined : before.get(key);
      const spans = joined(known?.spans, told.spans, SPAN, told);
      const bubbles = joined(known?.bubbles, told.bubbles, BUBBLE, told);
      this.processes.set(key, { ...told, spans, bubbles, lanes: lanesOf(spans) });
    }
    Object.assign(this.sections, message.sections);
    for (const [path, text] of Object.entries(message.logs)) this.logs.set(path, text);
    return new Set(Object.keys(message.sections));
  }

  /** Returns a span's end; an open span ends with its process, or at the latest known time. */
  endOf(process, at) {
    const duration = process.spans[at + 1];
    if (duration >= 0) return process.spans[at] + duration;
    return Math.max(process.spans[at], process.ended ?? this.end);
  }
}

/** Merges known items that ended before `since` with new items, in order of their begin. */
function joined(known, added, width, { since, first }) {
  if (!known) return Float64Array.from(added);
  const kept = [];
  for (let at = 0; at < known.length; at += width) {
    const ends = known[at + 1] < 0 ? Infinity : known[at] + known[at + 1];
    if (ends < since && known[at] >= first) kept.push(at);
  }
  const rows = [...kept.map((at) => [known, at])];
  for (let at = 0; at < added.length; at += width) rows.push([added, at]);
  rows.sort((one, other) => one[0][one[1]] - other[0][other[1]]);
  const numbers = new Float64Array(rows.length * width);
  rows.forEach(([from, at], row) => {
    for (let column = 0; column < width; column += 1) numbers[row * width + column] = from[at + column];
  });
  return numbers;
}

function lanesOf(spans) {
  let lanes = 1;
  for (let at = 4; at < spans.length; at += SPAN) lanes = Math.max(lanes, spans[at] + 1);
  return lanes;
}

/** Orders drivers first, then workers by group and rank. */
function compareProcesses(one, other) {
  const role = (process) => (process.name.startsWith("driver") ? 0 : 1);
  return role(one) - role(other) || one.group.localeCompare(other.group) || one.rank - other.rank || one.pid - other.pid;
}
