// The verdict as text, and the graph of who waits for whom, as a drawing and as a list of its boxes.

const BOX = { width: 226, height: 58, across: 84, down: 22, margin: 14 };

const toneOf = (verdict) => (verdict.is_stuck ? "stuck" : verdict.kind === "straggler" ? "straggler" : "calm");

function showVerdict(model) {
  const verdict = model.sections.verdict;
  const section = byId("verdict");
  section.hidden = !verdict;
  if (!verdict) return;
  section.className = toneOf(verdict);
  const advice = verdict.advice.map((line) => element("p", { class: "advice" }, `→ ${line}`));
  const lines = verdict.lines.length ? element("details", { open: !verdict.advice.length && verdict.is_stuck }, element("summary", {}, countText(verdict.lines.length, "wait")), element("ul", {}, ...verdict.lines.map((line) => element("li", {}, line)))) : null;
  renew(byId("verdict-words"), element("p", { class: "headline" }, element("b", {}, verdict.kind), ` ${verdict.headline}`), ...advice, ...(lines ? [lines] : []));
}

function unasked({ missing, is_alive: isAlive }) {
  if (missing["its verdict"]) return `There is no verdict: ${missing["its verdict"]}.`;
  if (isAlive === null) return `The run could not be asked: ${missing["its daemons"] ?? "no daemon of it is on this machine"}.`;
  return isAlive ? "The run has not been asked yet." : "The run was not asked while it lived: long waits that its ranks have told of are among the errors.";
}

function showWaits(model) {
  const picture = model.sections.picture;
  const body = byId("waits-body");
  byId("waits").classList.toggle("wide", Boolean(picture?.boxes.some((box) => box.column > 1)));
  if (!picture) return renew(body, nothing(unasked(model.sections.summary)));
  if (!picture.arrows.length) return renew(body, nothing("Nothing waits for anything of the run."));
  const left = picture.left_out ? [nothing(`${picture.left_out} more boxes are left out.`)] : [];
  return renew(body, element("div", { class: `scroll graph ${toneOf(model.sections.verdict)}`, tabindex: "0", role: "region", "aria-label": "Graph of waits" }, drawing(picture)), ...left);
}

function drawing({ boxes, arrows }) {
  const columns = Math.max(...boxes.map((box) => box.column)) + 1;
  const rows = Math.max(...boxes.map((box) => box.row)) + 1;
  const width = columns * (BOX.width + BOX.across) - BOX.across + 2 * BOX.margin + 30;
  const height = rows * (BOX.height + BOX.down) - BOX.down + 2 * BOX.margin + 18;
  const blamed = arrows.filter((arrow) => boxes[arrow.start].is_blamed && boxes[arrow.end].is_blamed);
  const words = arrows.map((arrow) => `${boxes[arrow.start].name} waits for ${boxes[arrow.end].name} (${arrow.kind})`).join("; ");
  const head = (id) => svg("marker", { id, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 8, markerHeight: 8, orient: "auto-start-reverse" }, svg("path", { d: "M0 0L8 4L0 8Z" }));
  return svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": words },
    svg("defs", {}, head("head"), head("head-bad")),
    ...arrows.map((arrow) => arrowOf(arrow, boxes, blamed.includes(arrow), arrows)),
    ...boxes.map(boxOf));
}

const placeOf = (box) => ({ x: BOX.margin + box.column * (BOX.width + BOX.across), y: BOX.margin + 9 + box.row * (BOX.height + BOX.down) });

function boxOf(box) {
  const { x, y } = placeOf(box);
  const line = (text, dy, name, letters) => svg("text", { x: 10, y: dy, class: name }, text.length > letters ? `${text.slice(0, letters - 1)}…` : text);
  const state = box.state === "thing" ? "" : `${box.state}${box.age ? ` ${box.age}` : ""}`;
  return svg("g", { transform: `translate(${x} ${y})`, class: `box ${box.state}${box.is_blamed ? " blamed" : ""}`, tabindex: "0" },
    svg("title", {}, [box.name, ...box.lines].join("\n")),
    svg("rect", { width: BOX.width, height: BOX.height, rx: 5 }),
    line(box.name, 19, "name", 26), line(state, 34, "state", 33), line(box.what, 49, "what", 33));
}

function arrowOf({ start, end, kind, is_coming: isComing }, boxes, isBlamed, arrows) {
  const from = placeOf(boxes[start]);
  const to = placeOf(boxes[end]);
  const isBack = arrows.some((other) => other.start === end && other.end === start) && start > end;
  const shift = isBack ? 12 : arrows.some((other) => other.start === end && other.end === start) ? -12 : 0;
  const y1 = from.y + BOX.height / 2 + shift;
  const y2 = to.y + BOX.height / 2 + shift;
  let path, at;
  if (from.x < to.x) {
    const bend = BOX.across / 2 + (to.x - from.x - BOX.width - BOX.across) / 4;
    path = `M${from.x + BOX.width} ${y1}C${from.x + BOX.width + bend} ${y1} ${to.x - bend} ${y2} ${to.x - 2} ${y2}`;
    at = { x: to.x - 26, y: y2 - 6 };
  } else if (from.x > to.x) {
    path = `M${from.x} ${y1}C${from.x - BOX.across / 2} ${y1} ${to.x + BOX.width + BOX.across / 2} ${y2} ${to.x + BOX.width + 2} ${y2}`;
    at = { x: (to.x + BOX.width + from.x) / 2, y: (y1 + y2) / 2 + (isBack ? 14 : -5) };
  } else {
    // Draw downward arrows on the right side and upward ones on the left, so that mutual waits show as two arrows.
    const side = from.y < to.y ? 1 : -1;
    const out = side > 0 ? from.x + BOX.width : from.x;
    const [top, bottom] = [from.y + BOX.height * 0.7, to.y + BOX.height * 0.3];
    const [start, end] = side > 0 ? [top, bottom] : [from.y + BOX.height * 0.3, to.y + BOX.height * 0.7];
    path = `M${out} ${start}C${out + side * 40} ${start} ${out + side * 40} ${end} ${out + side * 2} ${end}`;
    at = { x: out + side * 30, y: (start + end) / 2 + 4 };
  }
  const style = `arrow${isBlamed ? " blamed" : ""}${isComing ? " coming" : ""}`;
  return svg("g", { class: style }, svg("path", { d: path, "marker-end": `url(#${isBlamed ? "head-bad" : "head"})` }), svg("text", { x: at.x, y: at.y }, kind));
}
