// Charts of values over time, in the same range as the timelines: items in channels, and ranks' versions of weights.

const CHART_WIDTH = 1000;

/** Yields begin, end and value of each step within a range. */
function* stretches(steps, range) {
  for (let at = 0; at < steps.length; at += 1) {
    const begin = Math.max(steps[at][0], range.begin);
    const end = Math.min(at + 1 < steps.length ? steps[at + 1][0] : range.max, range.end);
    if (end > begin) yield [begin, end, steps[at][1]];
  }
}

class Charts {
  constructor(model, range) {
    Object.assign(this, { model, range, painters: new Map() });
    range.listeners.push(() => this.draw());
  }

  draw() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = undefined;
      for (const painters of this.painters.values()) for (const paint of painters) paint();
    });
  }

  x(time) { return ((time - this.range.begin) / this.range.length) * CHART_WIDTH; }

  channels() {
    const channels = this.model.sections.channels;
    this.painters.set("channels", []);
    if (!channels.length) return renew(byId("channels-body"), nothing("No channel was used, as far as it was recorded."));
    const rows = channels.map(({ name, steps, now, is_exact: isExact, left_out: leftOut, ledger }) => {
      if (ledger) return [element("span", { title: "an experience" }, name), String(now), "", ledger];
      if (leftOut) return [name, now === null ? "unknown" : String(now), "unknown", `${countText(leftOut, "operation")} left out at a high rate`];
      const most = steps.reduce((highest, [, value]) => Math.max(highest, value), 0);
      const about = isExact ? "" : "about: some puts and gets were overwritten";
      const sign = isExact ? "" : "≈ ";
      return [element("span", { title: about }, name), `${sign}${now}`, `${sign}${most}`, this.stepChart("channels", name, steps, most)];
    });
    return renew(byId("channels-body"), table("Items in channels", ["channel", "now", "most", "items over the range shown above"], rows, [1, 2]));
  }

  stepChart(section, name, steps, most) {
    const area = svg("path", { class: "area" });
    const line = svg("path", { class: "line", "vector-effect": "non-scaling-stroke" });
    this.painters.get(section).push(() => {
      const y = (value) => 38 - (most ? (value / most) * 34 : 0);
      const corners = [...stretches(steps, this.range)].map(([begin, end, value]) => `${this.x(begin).toFixed(1)} ${y(value).toFixed(1)}H${this.x(end).toFixed(1)}`);
      line.setAttribute("d", corners.length ? `M${corners.join("L")}` : "");
      const [first] = stretches(steps, this.range);
      area.setAttribute("d", first ? `M${this.x(first[0])} 38L${corners.join("L")}V38Z` : "");
    });
    return svg("svg", { class: "chart", viewBox: `0 0 ${CHART_WIDTH} 40`, preserveAspectRatio: "none", role: "img", "aria-label": `${name}: at most ${most}, now ${steps.at(-1)?.[1] ?? 0}` }, area, line);
  }

  versions() {
    const models = this.model.sections.versions;
    this.painters.set("versions", []);
    if (!models.length) return renew(byId("versions-body"), nothing("No weights were published or applied, as far as it was recorded."));
    return renew(byId("versions-body"), ...models.flatMap((each) => this.versionsOf(each)));
  }

  versionsOf({ model, published, applied }) {
    const newest = published.at(-1);
    const said = newest ? `version ${newest[1]} published at ${clockText(this.model.origin, newest[0])}` : "never published, as far as it was recorded";
    const entries = Object.entries(applied);
    const most = Math.max(1, ...entries.map(([, { behind }]) => Math.max(0, ...behind.map(([, value]) => value))));
    const rows = entries.map(([process, { version, behind }]) => {
      const now = behind.at(-1)?.[1] ?? 0;
      const worst = Math.max(0, ...behind.map(([, value]) => value));
      return [process, String(version), now ? element("b", { class: now > 1 ? "bad" : "late" }, String(now)) : "0", String(worst), this.strip(process, behind, most)];
    });
    const body = rows.length ? table(`Versions of ${model}`, ["rank", "applied", "behind", "most", "behind over the range shown above"], rows, [1, 2, 3]) : nothing("No rank has applied it.");
    return [element("h3", {}, model, element("small", {}, ` ${said}`)), body];
  }

  /** Draws a strip that is darker the more versions a rank is behind. */
  strip(process, behind, most) {
    const made = svg("svg", { class: "chart strip", viewBox: `0 0 ${CHART_WIDTH} 12`, preserveAspectRatio: "none", role: "img", "aria-label": `${process}: versions behind over time` });
    this.painters.get("versions").push(() => {
      made.replaceChildren(...[...stretches(behind, this.range)].map(([begin, end, value]) => {
        const cell = svg("rect", { x: this.x(begin).toFixed(1), width: Math.max(1, this.x(end) - this.x(begin)).toFixed(1), y: 1, height: 10, class: value ? "behind" : "current" }, svg("title", {}, `${value} behind from ${clockText(this.model.origin, begin)} on`));
        if (value) cell.style.opacity = String(0.25 + 0.75 * Math.min(1, value / most));
        return cell;
      }));
    });
    return made;
  }
}
