// Starts the page from embedded data or from its server's messages; also shows the head and the theme.

const model = new Model();
const range = new Range();
const palette = new Palette();
const timelines = new Timelines(model, range, palette);
const charts = new Charts(model, range);
const logs = new Logs(model);
let connection = "embedded";

function take(message) {
  const changed = model.apply(message);
  range.extend(model.begin, model.end);
  timelines.update();
  showSummary();
  if (changed.has("verdict")) showVerdict(model);
  if (changed.has("picture") || !model.sections.picture) showWaits(model);
  if (changed.has("troubles")) showTroubles(model);
  if (changed.has("channels")) charts.channels();
  if (changed.has("versions")) charts.versions();
  if (changed.has("phases")) showPhases(model);
  if (Object.keys(message.logs).length || !logs.paths) logs.update();
  charts.draw();
}

function showSummary() {
  const summary = model.sections.summary;
  byId("run").textContent = summary.run;
  const taken = clockText(Math.floor(summary.taken_at), (summary.taken_at % 1) * 1e6);
  const state = byId("state");
  const words = { live: "live", lost: "connection lost", ended: "ended", embedded: summary.is_alive === false ? "ended" : `taken ${taken}` };
  say(state, words[connection]);
  state.className = `pill ${connection}`;
  const facts = [
    ["from", clockText(model.origin, model.begin)], ["to", clockText(model.origin, model.end)],
    ["processes", String(model.processes.size)], ["nodes", String(new Set([...model.processes.values()].map((each) => each.node)).size)],
    ["events", summary.events.toLocaleString("en")],
  ];
  byId("facts").replaceChildren(...facts.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
  const cut = [...model.processes.values()].filter((each) => each.is_full);
  const notes = cut.length ? [`Of ${cut.length === 1 ? cut[0].name : `${cut.length} processes`} older events were overwritten: their timelines begin late.`] : [];
  const skipping = [...model.processes.values()].filter((each) => each.skipped);
  const skipped = skipping.reduce((sum, each) => sum + each.skipped, 0);
  if (skipped) notes.push(`Of ${skipping.length === 1 ? skipping[0].name : `${skipping.length} processes`} ${countText(skipped, "operation")} were left out at a high rate: idle times are about (≈), items in channels unknown.`);
  for (const [what, reason] of Object.entries(summary.missing)) notes.push(`Missing: ${what}: ${reason}.`);
  say(byId("notice"), notes.join(" "));
  byId("notice").hidden = !notes.length;
}

function connect() {
  connection = "live";
  const follow = byId("follow");
  follow.hidden = false;
  follow.addEventListener("click", () => {
    range.follows = !range.follows;
    range.extend(range.min, range.max);
  });
  range.listeners.push(() => follow.setAttribute("aria-pressed", String(range.follows || range.isAll)));
  const events = new EventSource("events");
  const change = (state) => {
    connection = state;
    if (model.sections.summary) showSummary();
    else byId("state").textContent = state === "lost" ? "no connection" : "loading";
  };
  // A new connection begins with a complete message, so the page keeps its old data until that arrives.
  events.onopen = () => change("live");
  events.onmessage = (event) => take(JSON.parse(event.data));
  events.addEventListener("end", () => {
    events.close();
    change("ended");
  });
  events.onerror = () => change("lost");
}

// -- theme: the system's, unless the user chooses one

const THEMES = { system: ["◐", "as the system"], light: ["☀", "light"], dark: ["☾", "dark"] };

function dress(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  const [sign, words] = THEMES[theme];
  byId("theme").textContent = sign;
  byId("theme").setAttribute("aria-label", `Theme: ${words}`);
  byId("theme").title = `Theme: ${words}`;
  palette.read();
  timelines.draw();
}

let theme = "system";
byId("theme").addEventListener("click", () => {
  const names = Object.keys(THEMES);
  theme = names[(names.indexOf(theme) + 1) % names.length];
  dress(theme);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => dress(theme));
dress(theme);

timelines.onDrawn = () => {
  if (!model.processes.size) return;
  timelines.onDrawn = undefined;
  requestAnimationFrame(() => performance.mark("drawn")); // runs in the frame after the one that shows the timelines
};

const embedded = JSON.parse(byId("data").textContent);
if (embedded === null) connect();
else take(embedded);
