// A table of durations: of served calls and of the user's spans, with the median over the run.

function showPhases(model) {
  const phases = model.sections.phases;
  if (!phases.length) return renew(byId("phases-body"), nothing("No call was served and no worker_timer has ended, as far as it was recorded."));
  const longest = phases[0].total || 1;
  const rows = phases.map((phase) => {
    const swatch = element("i", { class: "swatch", "aria-hidden": "true" });
    swatch.style.background = phase.is_call ? "var(--serve)" : "var(--span)";
    const bar = element("i", { class: "bar", "aria-hidden": "true" });
    bar.style.width = `${Math.max(1, (phase.total / longest) * 100)}%`;
    const failed = phase.failed ? element("b", { class: "bad" }, String(phase.failed)) : "0";
    const total = element("span", { class: "total" }, bar, element("span", {}, durationText(phase.total)));
    return [element("span", {}, swatch, phase.is_call ? `${phase.name}()` : phase.name), phase.is_call ? "call" : "worker_timer", phase.count.toLocaleString("en"), total, durationText(phase.p50), durationText(phase.most), failed, trend(phase)];
  });
  const titles = ["phase", "kind", "count", "total", "median", "longest", "failed", "median over the whole run"];
  return renew(byId("phases-body"), table("Step time by phase", titles, rows, [2, 3, 4, 5, 6]));
}

/** Draws the windows' medians as bars, scaled to the longest. */
function trend({ name, windows }) {
  const most = Math.max(...windows.map((each) => each ?? 0)) || 1;
  const bars = windows.flatMap((each, at) => {
    if (each === null) return [];
    const height = Math.max(1.5, (each / most) * 22);
    return [svg("rect", { x: at * 5, y: 24 - height, width: 4, height }, svg("title", {}, durationText(each)))];
  });
  return svg("svg", { class: "trend", viewBox: `0 0 ${windows.length * 5} 24`, preserveAspectRatio: "none", role: "img", "aria-label": `${name}: median over time, up to ${durationText(most)}` }, ...bars);
}
