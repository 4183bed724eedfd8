// All models: plots of the whole server, and a table that can be filtered and sorted.
import { Chart } from "./chart.js";
import { chip, count, h, modelLink, plural, put, say, time } from "./dom.js";
import { BROKEN, F, KNOWN, READY } from "./store.js";

const SHOWN = 100; // rows at first, and how many more each time

const rates = (value) => `${count(value)}/s`;

/** The plots of a server, or of a model: `update(points)` with what store.js keeps. */
export function plots(words) {
  const charts = [
    [new Chart("Requests", ["answered", "failed"], rates, { least: 1, colours: ["accent", "bad"] }), (p) => [p[0], p[1], p[2]]],
    [new Chart("Latency", ["p50", "p90", "p99"], time), (p) => [p[0], p[6], p[7], p[8]]],
    [new Chart("Queue", ["waiting", "executing"], (value) => count(Math.round(value * 10) / 10), { least: 4 }), (p) => [p[0], p[3], p[9]]],
    [new Chart("Oldest in a queue", ["waits for"], time, { least: 10 }), (p) => [p[0], p[4]]],
    [new Chart("Batch", ["rows"], count, { least: 2, unit: "rows an execution" }), (p) => [p[0], p[5]]],
  ];
  return {
    element: h("section", { class: "charts", "aria-label": words }, ...charts.map(([chart]) => chart.element)),
    update(points) { for (const [chart, pick] of charts) chart.update(points.map(pick)); },
  };
}

const quick = (row, at) => (row.quantiles ? row.quantiles[at] : null);
const figure = (row, at) => (row.figures ? row.figures[at] : null);

/** Title, the value to sort by, its text, and its class. */
const COLUMNS = [
  ["Requests", (row) => row.rate, (row) => (row.figures ? rates(row.rate) : ""), "num"],
  ["Failed", (row) => (row.figures ? row.figures[F.fail] + row.figures[F.refused] : null), (row) => (row.figures ? count(row.figures[F.fail] + row.figures[F.refused]) : ""), "num wide"],
  ["p50", (row) => quick(row, 0), (row) => (row.figures ? time(quick(row, 0)) : ""), "num wide"],
  ["p99", (row) => quick(row, 2), (row) => (row.figures ? time(quick(row, 2)) : ""), "num"],
  ["Waiting", (row) => figure(row, F.pending), (row) => (row.figures ? count(row.figures[F.pending]) : ""), "num wide"],
  ["Oldest", (row) => figure(row, F.age), (row) => (row.figures ? (row.figures[F.pending] ? time(row.figures[F.age]) : "–") : ""), "num wide"],
  ["Executing", (row) => figure(row, F.running), (row) => (row.figures ? count(row.figures[F.running]) : ""), "num wide"],
  ["Batch", (row) => row.batch, (row) => (row.figures ? (row.batch === null ? "–" : count(row.batch)) : ""), "num wide"],
];

const ORDER = { UNAVAILABLE: 0, LOADING: 1, UNLOADING: 2, READY: 3, "": 4 };
const rank = (row) => (row.state === "UNAVAILABLE" && row.reason === "unloaded" ? 4 : ORDER[row.state] ?? 4);
const byName = (one, other) => (one.name < other.name ? -1 : one.name > other.name ? 1 : Number(one.version) - Number(other.version));

export function overview(store) {
  const charts = plots("The whole server");
  const heading = h("h1", { text: "Models" });
  const summary = h("p", { class: "muted", text: "waiting for the first figures" });
  const filter = h("input", { type: "search", placeholder: "Filter by name or state", "aria-label": "Filter models by name or state", oninput: () => { limit = SHOWN; update(); } });
  const body = h("tbody");
  const more = h("button", { type: "button", onclick: () => { limit += SHOWN; update(); } });
  const empty = h("p", { class: "empty", hidden: true });
  const views = new Map();
  let sorted = -2, down = true, limit = SHOWN; // -2: what needs a look first; -1: by name

  const heads = [["Model", -1, ""], ["State", -2, ""], ...COLUMNS.map(([title, , , kind], at) => [title, at, kind])].map(([title, at, kind]) =>
    h("th", { scope: "col", class: kind }, h("button", { type: "button", class: "plain", text: title, onclick: () => sort(at) })));
  const table = h("table", { class: "models" }, h("caption", { class: "hidden-visually", text: "Models, their states and figures" }), h("thead", {}, h("tr", {}, ...heads)), body);

  function sort(at) {
    down = sorted === at ? !down : at >= 0;
    sorted = at;
    update();
  }

  function compare(one, other) {
    if (sorted === -2) return (down ? 1 : -1) * (rank(one) - rank(other)) || byName(one, other);
    if (sorted === -1) return (down ? -1 : 1) * byName(one, other);
    const value = COLUMNS[sorted][1];
    const a = value(one) ?? -1, b = value(other) ?? -1;
    return (down ? b - a : a - b) || byName(one, other);
  }

  function viewOf(row) {
    const key = `${row.name}\n${row.version}`;
    let view = views.get(key);
    if (!view) {
      const state = h("td"), cells = COLUMNS.map(([, , , kind]) => h("td", { class: kind }));
      const name = h("td", { class: "name" }, h("a", { href: modelLink(row.name), text: row.name }), row.version ? h("span", { class: "muted", text: ` ${row.version}` }) : null);
      view = { element: h("tr", {}, name, state, ...cells), state, cells, told: null };
      views.set(key, view);
    }
    if (view.told !== `${row.state}\n${row.reason}`) {
      view.told = `${row.state}\n${row.reason}`;
      put(view.state, stateChip(row), ...(row.reason && row.reason !== "unloaded" ? [h("span", { class: "reason", text: row.reason })] : []));
    }
    COLUMNS.forEach(([, , text], at) => say(view.cells[at], text(row)));
    return view.element;
  }

  function update() {
    charts.update(store.points);
    const wanted = filter.value.trim().toLowerCase();
    const found = [...store.rows.values()].filter((row) => !wanted || `${row.name} ${row.state}`.toLowerCase().includes(wanted)).sort(compare);
    const shown = found.slice(0, limit).map(viewOf);
    shown.forEach((element, at) => { if (body.children[at] !== element) body.insertBefore(element, body.children[at] ?? null); });
    while (body.children.length > shown.length) body.lastChild.remove();
    if (views.size > 4 * limit) for (const [key, view] of views) if (!view.element.isConnected) views.delete(key);
    heads.forEach((head, at) => {
      const mine = [-1, -2][at] ?? at - 2;
      if (mine === sorted) head.setAttribute("aria-sort", down === (mine >= 0 || mine === -1) ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    more.hidden = found.length <= limit;
    say(more, `Show ${Math.min(SHOWN, found.length - limit)} more of ${found.length}`);
    const last = store.last;
    table.hidden = !found.length;
    empty.hidden = Boolean(found.length) || !last;
    say(empty, wanted ? `No model is called, or is, “${filter.value.trim()}”.` : none(store.hello.mode));
    if (last) say(summary, words(last));
  }

  function words(last) {
    const parts = [`${last[READY].toLocaleString("en")} of ${plural(last[KNOWN], "version")} ready`];
    if (last[BROKEN]) parts.push(`${last[BROKEN]} failed`);
    return parts.join(", ");
  }

  const bar = h("div", { class: "bar" }, heading, summary, h("span", { class: "end" }, filter));
  return { elements: [bar, charts.element, h("section", { class: "card", "aria-label": "Models" }, h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of models" }, table), empty, more)], update };
}

const none = (mode) => (mode === "explicit" || mode === "on-demand"
  ? "No model has been loaded yet. POST /v2/repository/models/NAME/load loads one."
  : "There is no model: the repository is empty. Put one there, or make one with `kernel new`.");

export function stateChip(row) {
  if (row.state === "UNAVAILABLE") return row.reason && row.reason !== "unloaded" ? chip("FAILED", "failed") : chip("UNAVAILABLE", row.reason || "unavailable");
  return chip(row.state || "UNAVAILABLE", row.state || "not loaded");
}
