// The interactive timelines: wheel, drag, pinch and keys; describes the span under the pointer or selected.

const KEYS = "Wheel or + − zooms, drag or ← → pans, 0 shows all. ↑ ↓ choose a row, N and P the next span, Enter zooms to it, Esc lets go.";

class Timelines {
  constructor(model, range, palette) {
    Object.assign(this, { model, range, palette });
    this.canvas = byId("canvas");
    this.view = byId("rows");
    this.rows = new Rows();
    this.painter = new Painter(this.canvas, model, range, this.rows, palette);
    this.selected = null;
    this.pointers = new Map();
    byId("keys").append(KEYS);
    byId("legend").append(...legend());
    this.listen();
  }

  listen() {
    const { canvas, range } = this;
    range.listeners.push(() => this.draw());
    this.view.addEventListener("scroll", () => this.draw());
    new ResizeObserver(() => this.fit()).observe(this.view);
    canvas.addEventListener("wheel", (event) => this.onWheel(event), { passive: false });
    canvas.addEventListener("keydown", (event) => this.onKey(event));
    canvas.addEventListener("pointerdown", (event) => this.onDown(event));
    canvas.addEventListener("pointermove", (event) => this.onMove(event));
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (event) => this.onUp(event));
    canvas.addEventListener("pointerleave", () => hideTip());
    canvas.addEventListener("dblclick", (event) => this.select(this.hit(event), true));
    canvas.addEventListener("blur", () => hideTip());
    byId("zoom-in").addEventListener("click", () => range.zoom(0.5));
    byId("zoom-out").addEventListener("click", () => range.zoom(2));
    byId("zoom-all").addEventListener("click", () => range.all());
  }

  update() {
    this.rows.lay(this.model);
    if (this.selected) this.selected = this.refound(this.selected);
    this.showGroups();
    this.fit();
  }

  fit() {
    const height = Math.min(this.rows.height + AXIS, Math.max(220, Math.round(window.innerHeight * 0.58)));
    this.view.style.height = `${height}px`;
    byId("spacer").style.height = `${this.rows.height + AXIS}px`;
    const width = this.view.clientWidth;
    if (this.painter.width !== width || this.painter.height !== height) {
      this.painter.resize(width, height); // resizing blanks the canvas, so paint now, not in the next frame
      this.painter.paint(this.view.scrollTop, this.selected);
    }
    this.draw();
  }

  /** Draws once in the next frame, however often it is called before then. */
  draw() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = undefined;
      this.painter.paint(this.view.scrollTop, this.selected);
      byId("span-text").textContent = durationText(this.range.length);
      this.onDrawn?.();
    });
  }

  showGroups() {
    const chips = [...this.rows.groups].map(([group, members]) => {
      const folded = this.rows.isFolded(group, members.length);
      const press = () => {
        this.rows.toggle(group, members.length);
        this.update();
        byId("groups").querySelector(`[data-group="${CSS.escape(group)}"]`)?.focus();
      };
      return element("button", { type: "button", "data-group": group, "aria-expanded": String(!folded), onclick: press }, `${folded ? "▸" : "▾"} ${group} `, element("small", {}, String(members.length)));
    });
    const told = chips.map((chip) => chip.textContent).join();
    if (told !== this.chips) byId("groups").replaceChildren(...chips);
    this.chips = told;
    this.canvas.setAttribute("aria-label", `Timelines of ${countText(this.model.processes.size, "process").replace("processs", "processes")}`);
  }

  // -- pointers

  onWheel(event) {
    const { range } = this;
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      range.pan((event.deltaX || event.deltaY) / 1500);
    } else if (event.deltaY < 0 || !range.isAll) { // fully zoomed out, the wheel scrolls the page
      event.preventDefault();
      range.follows = false;
      range.zoom(Math.exp(Math.max(-120, Math.min(120, event.deltaY)) / 300), this.place(event.offsetX));
    }
  }

  place(x) { return Math.max(0, Math.min(1, (x - this.painter.gutter) / (this.painter.width - this.painter.gutter))); }

  onDown(event) {
    this.canvas.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, { x: event.offsetX, from: event.offsetX });
    hideTip();
  }

  onMove(event) {
    if (!(event.buttons & 1)) this.pointers.delete(event.pointerId); // a context menu swallows a button's release
    const pointer = this.pointers.get(event.pointerId);
    if (!pointer) return this.tell(this.hit(event), event.clientX, event.clientY);
    const width = this.painter.width - this.painter.gutter;
    const others = [...this.pointers.values()].filter((each) => each !== pointer);
    if (others.length) {
      const distance = (x) => Math.max(20, Math.abs(x - others[0].x));
      this.range.zoom(distance(pointer.x) / distance(event.offsetX), this.place((pointer.x + others[0].x) / 2));
    } else {
      this.range.pan((pointer.x - event.offsetX) / width);
    }
    pointer.x = event.offsetX;
    return undefined;
  }

  onUp(event) {
    const pointer = this.pointers.get(event.pointerId);
    this.pointers.delete(event.pointerId);
    if (pointer && Math.abs(pointer.from - event.offsetX) < 4) this.select(this.hit(event), false, event);
  }

  /** Returns the span under the pointer; the nearest, if several share a pixel. */
  hit(event) {
    const found = event.offsetY < AXIS ? null : this.rows.at(event.offsetY - AXIS + this.view.scrollTop);
    if (!found?.process || event.offsetX < this.painter.gutter) return null;
    const time = this.painter.micros(event.offsetX);
    const reach = (this.range.length / this.painter.width) * 2;
    let best = null;
    const { spans } = found.process;
    for (let at = 0; at < spans.length && spans[at] <= time + reach; at += SPAN) {
      if (spans[at + 4] !== found.lane) continue;
      const away = time - this.model.endOf(found.process, at);
      if (away <= reach && (best === null || away <= best.away)) best = { process: found.process, at, away: Math.max(away, 0) };
    }
    return best;
  }

  // -- selection

  select(span, zooms, event) {
    this.selected = span;
    if (!span) hideTip();
    else {
      const begin = span.process.spans[span.at];
      const end = this.model.endOf(span.process, span.at);
      if (zooms) this.range.set(begin - (end - begin) * 0.2 - 5, end + (end - begin) * 0.2 + 5);
      else if (end < this.range.begin || begin > this.range.end) this.range.set(begin - this.range.length * 0.3, begin + this.range.length * 0.7);
      this.reveal(span.process);
      const box = this.canvas.getBoundingClientRect();
      this.tell(span, event?.clientX ?? box.left + Math.max(this.painter.gutter, this.painter.x(begin)), event?.clientY ?? box.top + AXIS + this.boundsOf(span.process).top - this.view.scrollTop + 8);
      byId("said").textContent = this.facts(span).map(([, value]) => value).join(", ");
    }
    this.draw();
  }

  /** Returns top and height of a process's row, or of its strip in a folded group. */
  boundsOf(process) {
    const row = this.rows.list.find((each) => each.members.includes(process));
    return row.process ? row : { top: row.top + 2 + row.members.indexOf(process) * STRIP, height: STRIP };
  }

  reveal(process) {
    const { top, height } = this.boundsOf(process);
    const visible = this.painter.height - AXIS;
    if (top < this.view.scrollTop || top + height > this.view.scrollTop + visible) this.view.scrollTop = top - 10;
  }

  /** Finds the same span in new data, by its process, begin and name. */
  refound({ process, at }) {
    const same = this.model.processes.get(process.key);
    for (let other = 0; same && other < same.spans.length; other += SPAN) {
      if (same.spans[other] === process.spans[at] && same.spans[other + 2] === process.spans[at + 2]) return { process: same, at: other };
    }
    return null;
  }

  onKey(event) {
    const { range } = this;
    const actions = {
      ArrowLeft: () => range.pan(-0.15), ArrowRight: () => range.pan(0.15),
      "+": () => range.zoom(0.6), "=": () => range.zoom(0.6), "-": () => range.zoom(1 / 0.6), 0: () => range.all(),
      n: () => this.step(1), p: () => this.step(-1), ArrowDown: () => this.change(1), ArrowUp: () => this.change(-1),
      Enter: () => this.select(this.selected, true), Escape: () => this.select(null, false),
    };
    const action = event.ctrlKey || event.metaKey || event.altKey ? undefined : actions[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!action) return;
    event.preventDefault();
    action();
  }

  step(direction) {
    if (!this.selected) return this.change(direction);
    const { process, at } = this.selected;
    const next = at + direction * SPAN;
    if (next >= 0 && next < process.spans.length) this.select({ process, at: next }, false);
    return undefined;
  }

  /** Selects the first visible span of the next process that has one. */
  change(direction) {
    const processes = [...this.model.processes.values()];
    let number = this.selected ? processes.indexOf(this.selected.process) : direction > 0 ? -1 : processes.length;
    for (number += direction; number >= 0 && number < processes.length; number += direction) {
      const { spans } = processes[number];
      let at = 0;
      while (at < spans.length && this.model.endOf(processes[number], at) < this.range.begin) at += SPAN;
      if (at < spans.length) return this.select({ process: processes[number], at }, false);
    }
    return undefined;
  }

  // -- texts

  facts({ process, at }) {
    const { spans } = process;
    const kind = kindOf(spans[at + 3]);
    const value = spans[at + 5] && kind.value ? [["value", kind.value(spans[at + 5])]] : [];
    const begin = spans[at];
    const isOpen = spans[at + 1] < 0;
    const duration = durationText(this.model.endOf(process, at) - begin);
    return [
      ["name", this.model.names[spans[at + 2]]],
      ["kind", `${kind.name}${spans[at + 3] >= FAILED ? ", failed" : ""}`],
      ["duration", isOpen ? `${duration}, and not ended` : duration],
      ...value,
      ["begin", clockText(this.model.origin, begin, 1)],
      ["process", `${process.name}, pid ${process.pid} on ${process.host ?? `node ${process.node}`}`],
    ];
  }

  tell(span, x, y) {
    if (span) showTip(this.facts(span), x, y);
    else hideTip();
  }
}

function showTip([[, title], ...facts], x, y) {
  const tip = byId("tip");
  tip.replaceChildren(element("strong", {}, title), element("dl", {}, ...facts.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)])));
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(x + 14, window.innerWidth - width - 6))}px`;
  tip.style.top = `${y + 18 + height > window.innerHeight ? Math.max(4, y - height - 12) : y + 18}px`;
}

const hideTip = () => { byId("tip").hidden = true; };
