// Creates elements of the document. Workers' text becomes text nodes only, so data never becomes markup.

const byId = (id) => document.getElementById(id);

function element(tag, properties = {}, ...children) {
  return filled(document.createElement(tag), properties, children);
}

function svg(tag, properties = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), properties, children);
}

function filled(made, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

/** Returns a table with a head; cells are texts or elements, and columns in `numbers` are right-aligned. */
function table(caption, titles, rows, numbers = []) {
  const side = (at) => (numbers.includes(at) ? "number" : null);
  return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    element("table", {},
      element("thead", {}, element("tr", {}, ...titles.map((title, at) => element("th", { scope: "col", class: side(at) }, title)))),
      element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((cell, at) => element("td", { class: side(at) }, cell)))))));
}

/** Replaces a body's content. Parts keep their scroll position, open state and focus, matched from the end. */
function renew(body, ...children) {
  const places = () => [...body.querySelectorAll("[tabindex], summary, details")].reverse();
  const before = places().map((each) => ({ left: each.scrollLeft, top: each.scrollTop, open: each.open, focused: each === document.activeElement }));
  body.replaceChildren(...children);
  places().slice(0, before.length).forEach((each, at) => {
    Object.assign(each, { scrollLeft: before[at].left, scrollTop: before[at].top });
    if (before[at].open) each.open = true;
    if (before[at].focused) each.focus({ preventScroll: true });
  });
}

/** Sets the text of a live region, which a screen reader reads out each time it is set. */
function say(region, text) {
  if (region.textContent !== text) region.textContent = text;
}

const nothing = (text) => element("p", { class: "muted none" }, text);
