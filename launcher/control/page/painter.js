// Draws the rows into the canvas: the axis at the top, labels on the left, and only the visible spans.

const AXIS = 22;
const MIN_TEXT = 34; // smallest width in pixels of a span that shows its name
const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 2e6, 5e6, 1e7, 1.5e7, 3e7, 6e7, 1.2e8, 3e8, 6e8, 1.8e9, 3.6e9, 7.2e9, 2.16e10];

class Painter {
  constructor(canvas, model, range, rows, palette) {
    Object.assign(this, { canvas, model, range, rows, palette });
    this.context = canvas.getContext("2d", { alpha: false });
    this.font = getComputedStyle(document.body).fontFamily;
  }

  resize(width, height) {
    const ratio = window.devicePixelRatio || 1;
    Object.assign(this, { width, height, gutter: width < 560 ? 74 : 118 });
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
  }

  x(micros) { return this.gutter + ((micros - this.range.begin) / this.range.length) * (this.width - this.gutter); }

  micros(x) { return this.range.begin + ((x - this.gutter) / (this.width - this.gutter)) * this.range.length; }

  paint(scroll, selected) {
    const { context, palette } = this;
    context.textBaseline = "middle";
    context.fillStyle = palette.panel;
    context.fillRect(0, 0, this.width, this.height);
    const ticks = this.ticks();
    context.fillStyle = palette.line;
    for (const tick of ticks.places) context.fillRect(Math.round(this.x(tick)), AXIS, 1, this.height);
    context.save();
    context.beginPath();
    context.rect(0, AXIS, this.width, this.height - AXIS);
    context.clip();
    for (const row of this.rows.list) {
      const top = row.top - scroll + AXIS;
      if (top + row.height < AXIS || top > this.height) continue;
      if (row.process) this.paintProcess(row.process, top, row.height, LANE, false);
      else row.members.forEach((process, at) => this.paintProcess(process, top + 2 + at * STRIP, STRIP - 1, STRIP - 1, true));
      if (selected && row.members.includes(selected.process)) this.paintSelected(selected, row, top);
      this.paintLabel(row, top);
    }
    context.restore();
    this.paintAxis(ticks);
  }

  ticks() {
    const least = (92 * this.range.length) / Math.max(1, this.width - this.gutter);
    const step = STEPS.find((each) => each >= least) ?? Math.ceil(least / STEPS.at(-1)) * STEPS.at(-1);
    const places = [];
    for (let at = Math.ceil(this.range.begin / step) * step; at <= this.range.end; at += step) places.push(at);
    return { step, places };
  }

  paintAxis({ step, places }) {
    const { context, palette } = this;
    context.fillStyle = palette.raised;
    context.fillRect(0, 0, this.width, AXIS);
    context.fillStyle = palette.line;
    context.fillRect(0, AXIS - 1, this.width, 1);
    context.font = `11px ${this.font}`;
    context.fillStyle = palette.muted;
    context.textAlign = "left";
    for (const tick of places) {
      const text = clockText(this.model.origin, tick, step);
      const x = this.x(tick) + 4;
      if (x + context.measureText(text).width < this.width) context.fillText(text, x, AXIS / 2);
      context.fillRect(this.x(tick), AXIS - 6, 1, 5);
    }
  }

  paintLabel(row, top) {
    const { context, palette } = this;
    context.fillStyle = palette.panel;
    context.fillRect(0, top - GAP / 2, this.gutter - 1, row.height + GAP);
    context.fillStyle = palette.line;
    context.fillRect(0, Math.round(top + row.height + GAP / 2), this.width, 1);
    context.fillStyle = palette.text;
    context.font = `12px ${this.font}`;
    context.textAlign = "left";
    context.fillText(this.fitted(row.label, this.gutter - 12), 6, top + Math.min(row.height, 20) / 2);
    if (row.height < 28 || !row.process) return;
    const ended = row.process.ended !== null;
    context.fillStyle = ended ? palette.failed : palette.muted;
    context.font = `10.5px ${this.font}`;
    const said = [...(ended ? ["ended"] : []), ...(row.process.serves ? [`${row.process.skipped ? "≈ " : ""}${Math.round(this.idle(row.process) * 100)} % idle`] : [])];
    context.fillText(this.fitted(said.join(", "), this.gutter - 10), 6, top + 24);
  }

  /** Draws a process's spans; spans of one lane that fall on the same pixel are drawn once. */
  paintProcess(process, top, height, lane, isStrip) {
    const { context, palette, model, range } = this;
    this.paintBubbles(process, top, height);
    const { spans } = process;
    const drawn = new Array(process.lanes).fill(-1);
    context.font = `11px ${this.font}`;
    context.textAlign = "left";
    for (let at = 0; at < spans.length && spans[at] <= range.end; at += SPAN) {
      const place = spans[at + 4];
      if (isStrip && place) continue;
      const end = model.endOf(process, at);
      if (end < range.begin) continue;
      const right = Math.max(this.x(end), this.x(spans[at]) + 1);
      if (right <= drawn[place] + 0.5) continue;
      const left = Math.max(this.x(spans[at]), this.gutter, drawn[place]);
      drawn[place] = right;
      this.paintSpan(spans, at, left, Math.min(right, this.width), isStrip ? top : top + 1 + place * lane, isStrip ? lane : lane - 1, isStrip);
    }
    if (process.ended !== null && process.ended >= range.begin) {
      context.fillStyle = palette.failed;
      context.fillRect(this.x(process.ended) - 1, top, 2, height);
    }
  }

  paintSpan(spans, at, left, right, y, height, isStrip) {
    const { context, palette } = this;
    const isOpen = spans[at + 1] < 0;
    const isFailed = spans[at + 3] >= FAILED;
    context.fillStyle = palette.of(spans[at + 3]);
    context.fillRect(left, y, Math.max(right - left - (right - left > 3 ? 0.5 : 0), 1), height);
    if (isFailed) {
      context.fillStyle = palette.failed;
      context.fillRect(left, y + height - 3, Math.max(right - left, 2), 3);
    }
    if (isStrip) return;
    if (isOpen && right - left > 8) {
      context.fillStyle = palette.panel;
      for (let x = right - 2; x > right - 14 && x > left; x -= 4) context.fillRect(x, y, 2, height);
    }
    if (right - left < MIN_TEXT) return;
    context.fillStyle = palette["on-span"];
    const room = right - left - 8 - (isOpen ? 14 : 0);
    const text = this.fitted(this.model.names[spans[at + 2]], room);
    if (text.length > 1) context.fillText(text, left + 4, y + height / 2 + 0.5);
  }

  /** Returns the fraction of the range during which a process is in a bubble. */
  idle({ bubbles }) {
    let sum = 0;
    for (let at = 0; at < bubbles.length && bubbles[at] <= this.range.end; at += BUBBLE) {
      sum += Math.max(0, Math.min(bubbles[at] + bubbles[at + 1], this.range.end) - Math.max(bubbles[at], this.range.begin));
    }
    return sum / this.range.length;
  }

  paintBubbles(process, top, height) {
    const { context, palette, range } = this;
    const { bubbles } = process;
    let drawn = -1;
    for (let at = 0; at < bubbles.length && bubbles[at] <= range.end; at += BUBBLE) {
      const end = bubbles[at] + bubbles[at + 1];
      if (end < range.begin) continue;
      const left = Math.max(this.x(bubbles[at]), this.gutter, drawn);
      const right = Math.min(Math.max(this.x(end), left + 0.5), this.width);
      if (right <= drawn) continue;
      context.fillStyle = palette.bubble;
      context.fillRect(left, top, right - left, height);
      context.fillStyle = palette["bubble-line"];
      context.fillRect(left, top + height - 1, right - left, Math.min(3, GAP - 2));
      drawn = right;
    }
  }

  paintSelected({ process, at }, row, top) {
    const { context, palette } = this;
    const { spans } = process;
    const left = Math.max(this.x(spans[at]), this.gutter);
    const right = Math.min(Math.max(this.x(this.model.endOf(process, at)), left + 3), this.width);
    const y = row.process ? top + 1 + spans[at + 4] * LANE : top + 2 + row.members.indexOf(process) * STRIP;
    context.strokeStyle = palette.text;
    context.lineWidth = 2;
    context.strokeRect(left - 1, y - 1, right - left + 2, (row.process ? LANE - 1 : STRIP - 1) + 2);
  }

  fitted(text, room) {
    const { context } = this;
    if (context.measureText(text).width <= room) return text;
    const width = context.measureText(text).width / text.length;
    const letters = Math.floor(room / width) - 1;
    return letters > 1 ? `${text.slice(0, letters)}…` : "";
  }
}
