// Shows the last lines of one log or of all logs, or only the lines that contain a text.

const MAX_LINES = 3000;

class Logs {
  constructor(model) {
    this.model = model;
    this.file = byId("log-file");
    this.search = byId("log-search");
    this.file.addEventListener("change", () => this.show());
    this.search.addEventListener("input", () => this.show());
  }

  update() {
    const paths = [...this.model.logs.keys()];
    if (paths.join("\n") !== this.paths?.join("\n")) {
      const chosen = this.file.value;
      this.file.replaceChildren(element("option", { value: "" }, `all ${paths.length} files`), ...paths.map((path) => element("option", { value: path }, path)));
      this.file.value = paths.includes(chosen) ? chosen : "";
      this.paths = paths;
    }
    this.show();
  }

  show() {
    const wanted = this.search.value.toLowerCase();
    const paths = this.file.value ? [this.file.value] : this.paths;
    const found = [];
    for (const path of paths) {
      for (const line of this.model.logs.get(path).split("\n")) {
        if (line && (!wanted || line.toLowerCase().includes(wanted))) found.push([path, line]);
      }
    }
    const shown = found.slice(-MAX_LINES);
    const pre = byId("log-lines");
    const isAtEnd = pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 8;
    const made = new DocumentFragment(); // the arguments of one call cannot hold all matches of a letter
    shown.forEach(([path, line], at) => {
      if (paths.length > 1 && path !== shown[at - 1]?.[0]) made.append(element("span", { class: "path" }, `${path}\n`));
      for (const part of marked(`${line}\n`, wanted)) made.append(part);
    });
    pre.replaceChildren(made);
    if (isAtEnd) pre.scrollTop = pre.scrollHeight;
    const cut = shown.length < found.length ? `, the last ${MAX_LINES} shown` : "";
    say(byId("log-count"), this.paths.length ? `${countText(found.length, "line")}${wanted ? " found" : ""}${cut}` : "no logs");
  }
}

/** Returns a line as nodes, with matches of the searched text marked. */
function marked(line, wanted) {
  if (!wanted) return [line];
  const parts = [];
  const lower = line.toLowerCase();
  let from = 0;
  for (let at = lower.indexOf(wanted); at >= 0; at = lower.indexOf(wanted, from)) {
    parts.push(line.slice(from, at), element("mark", {}, line.slice(at, at + wanted.length)));
    from = at + wanted.length;
  }
  return [...parts, line.slice(from)];
}
