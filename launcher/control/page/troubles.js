// Deaths, failed operations and words about long waits, the latest first.

const TROUBLES = { death: "death", failed: "failed", wait: "long wait" };

function showTroubles(model) {
  const troubles = model.sections.troubles;
  const missing = Object.entries(model.sections.summary.missing).map(([node, reason]) => element("li", { class: "wait" }, element("b", {}, "missing"), ` ${node}: ${reason}`));
  if (!troubles.length && !missing.length) return byId("troubles-body").replaceChildren(nothing("None, as far as it was recorded."));
  const entries = troubles.map(({ kind, process, text, time, more }) => element("li", { class: kind },
    element("time", {}, clockText(model.origin, time)), " ", element("b", {}, TROUBLES[kind]), " ", element("span", { class: "who" }, process), " ", element("span", {}, text),
    more ? element("details", {}, element("summary", {}, "last words"), element("pre", {}, more)) : null));
  return byId("troubles-body").replaceChildren(element("ul", { class: "troubles scroll", tabindex: "0", "aria-label": "Errors, deaths and long waits" }, ...missing, ...entries));
}
