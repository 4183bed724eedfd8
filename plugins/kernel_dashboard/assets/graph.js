// Which models call which: the steps of ensembles, and calls that were seen. A drawing, and the same as a table.
import { count, h, modelLink, put, svg } from "./dom.js";
import { askJson } from "./stream.js";

const WIDE = 190, HIGH = 34, ACROSS = 130, DOWN = 18;

export function graphView() {
  const problem = h("p", { class: "bad", role: "status" });
  const place = h("section", { class: "card" }, h("p", { class: "empty", text: "Looking …" }));
  let open = true;
  let told = "";

  (async () => {
    while (open) {
      if (!document.hidden) {
        try {
          const found = await askJson("dashboard/graph");
          problem.textContent = "";
          const text = JSON.stringify(found);
          if (text !== told) { told = text; show(found); }
        } catch (error) { problem.textContent = error.message; }
      }
      await new Promise((resolve) => setTimeout(resolve, 5000));
    }
  })();

  function show({ nodes, edges }) {
    if (!edges.length) {
      put(place, h("p", { class: "empty", text: "No model calls another: there is no ensemble, and no call by exec was seen among the newest requests." }));
      return;
    }
    const rows = edges.map((edge) => h("tr", {}, h("td", { class: "name" }, link(edge.from)), h("td", { class: "name" }, link(edge.to)),
      h("td", { text: edge.step ? "step of the ensemble" : "call" }), h("td", { class: "num", text: edge.calls ? count(edge.calls) : "–" })));
    put(place, 
      h("div", { class: "graph", tabindex: "0", role: "region", "aria-label": "Drawing of calls between models" }, draw(nodes, edges)),
      h("p", { class: "muted small note", text: "Solid: steps of ensembles, by their configs. Dashed: calls that were seen. The numbers are of the newest requests, some thousands." }),
      h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of calls" }, h("table", {}, h("thead", {}, h("tr", {}, ...["From", "To", "How", "Seen"].map((title, at) => h("th", { scope: "col", text: title, class: at === 3 ? "num" : "" })))), h("tbody", {}, ...rows))));
  }

  return { elements: [h("div", { class: "bar" }, h("h1", { text: "Calls between models" })), problem, place], close() { open = false; } };
}

const link = (name) => h("a", { href: modelLink(name), text: name });

/** Columns by how far a model is from those that nobody calls; circles are cut where they close. */
function layers(nodes, edges) {
  const depth = new Map(nodes.map((node) => [node.name, 0]));
  for (let turn = 0; turn < nodes.length; turn++) {
    let moved = false;
    for (const { from, to } of edges) {
      if (from !== to && depth.get(to) <= depth.get(from) && depth.get(from) + 1 < nodes.length) { depth.set(to, depth.get(from) + 1); moved = true; }
    }
    if (!moved) break;
  }
  return depth;
}

function draw(nodes, edges) {
  const depth = layers(nodes, edges);
  const columns = [];
  for (const node of nodes) (columns[depth.get(node.name)] ??= []).push(node);
  const used = columns.filter(Boolean);
  const places = new Map();
  const tall = Math.max(...used.map((column) => column.length));
  used.forEach((column, across) => {
    const mean = (node) => {
      const callers = edges.filter((edge) => edge.to === node.name && places.has(edge.from)).map((edge) => places.get(edge.from).y);
      return callers.length ? callers.reduce((sum, y) => sum + y, 0) / callers.length : 0;
    };
    column.sort((one, other) => mean(one) - mean(other));
    const first = ((tall - column.length) * (HIGH + DOWN)) / 2;
    column.forEach((node, down) => places.set(node.name, { x: 2 + across * (WIDE + ACROSS), y: 2 + first + down * (HIGH + DOWN) }));
  });
  const width = used.length * (WIDE + ACROSS) - ACROSS + 4, height = tall * (HIGH + DOWN) - DOWN + 4;
  const arrow = svg("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, svg("path", { d: "M0 0 8 4 0 8z" }));
  const lines = edges.flatMap((edge) => {
    const a = places.get(edge.from), b = places.get(edge.to);
    const x1 = a.x + WIDE, y1 = a.y + HIGH / 2, x2 = b.x, y2 = b.y + HIGH / 2;
    const bend = Math.max(30, (x2 - x1) / 2);
    const path = svg("path", { class: edge.step ? "edge" : "edge seen", d: `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2 - 2} ${y2}`, "marker-end": "url(#arrow)" });
    const same = edges.filter((one) => one.from === edge.from);
    const t = same.length > 1 ? 0.35 + (0.35 * same.indexOf(edge)) / (same.length - 1) : 0.5; // numbers of one model's calls don't meet
    const along = (a, b, c, d) => (1 - t) ** 3 * a + 3 * (1 - t) ** 2 * t * b + 3 * (1 - t) * t * t * c + t ** 3 * d;
    const x = along(x1, x1 + bend, x2 - bend, x2), y = along(y1, y1, y2, y2);
    const words = edge.calls ? [svg("text", { class: "count", x, y: y - 3, "text-anchor": "middle", text: count(edge.calls) })] : [];
    return [path, ...words];
  });
  const boxes = nodes.map((node) => {
    const { x, y } = places.get(node.name);
    const text = node.name.length > 26 ? `${node.name.slice(0, 25)}…` : node.name;
    return svg("a", { href: modelLink(node.name) }, svg("title", { text: node.ready ? node.name : `${node.name}, which is not ready` }),
      svg("rect", { class: `box${node.ensemble ? " ens" : ""}${node.ready ? "" : " off"}`, x, y, width: WIDE, height: HIGH, rx: 7 }),
      svg("text", { x: x + WIDE / 2, y: y + HIGH / 2 + 4.5, "text-anchor": "middle", text }));
  });
  return svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "Calls between models" }, svg("defs", {}, arrow), ...lines, ...boxes);
}
