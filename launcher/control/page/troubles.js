// Lists deaths, failed operations and notes about long waits, latest first.

const TROUBLES = { death: "death", failed: "failed", wait: "long wait" };

function showTroubles(model) {
  const troubles = model.sections.troubles;
  if (!troubles.length) return renew(byId("troubles-body"), nothing("None, as far as it was recorded."));
  const entries = troubles.map(({ kind, process, text, time, more }) => element("li", { class: kind },
    element("time", {}, clockText(model.origin, time)), " ", element("b", {}, TROUBLES[kind]), " ", element("span", { class: "who" }, process), " ", element("span", {}, text),
    more ? element("details", {}, element("summary", {}, "last words"), element("pre", {}, more)) : null));
  return renew(byId("troubles-body"), element("ul", { class: "troubles scroll", tabindex: "0", "aria-label": "Errors, deaths and long waits" }, ...entries));
}
