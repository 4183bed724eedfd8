// Requests: those in flight and why they have no answer, the slowest with what their time went to, and those that failed.
import { chip, h, modelLink, plural, put, say, time } from "./dom.js";
import { askJson } from "./stream.js";

const EVERY = 1500; // milliseconds between two looks at what is in flight
const SLOWLY = 8000; // between two looks at the rest

const NAMES = { queue: "in the queue", delay: "held", wait: "waited", execute: "executed", answer: "answering" };

export function requestsView() {
  const flight = panel("In flight", "No request is in flight.");
  const slowest = panel("Slowest of the last hour", "No request has been answered yet.");
  const failed = panel("Failed last", "No request has failed in the last hour.");
  const flights = h("tbody");
  const table = h("table", {}, h("caption", { class: "hidden-visually", text: "Requests without an answer, the oldest first" }),
    h("thead", {}, h("tr", {}, ...["Model", "State", "Age", "Why it has no answer yet", "Request", "Client"].map((title, at) => h("th", { scope: "col", text: title, class: at === 2 ? "num" : "" })))), flights);
  flight.content.append(h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of requests in flight" }, table));
  let open = true;

  async function repeat(panel, path, every, show) {
    while (open) {
      if (!document.hidden) {
        try {
          show(await askJson(path));
          say(panel.problem, "");
        } catch (error) { say(panel.problem, error.message); }
      }
      await new Promise((resolve) => setTimeout(resolve, every));
    }
  }

  function showFlight(found) {
    flight.show(found.length, found.length === 50 ? "the 50 oldest" : plural(found.length, "request"));
    table.hidden = !found.length;
    put(flights, ...found.map((one) => h("tr", {},
      h("td", { class: "name" }, h("a", { href: modelLink(one.model), text: one.model }), h("span", { class: "muted", text: ` ${one.version}` })),
      h("td", {}, chip(one.state)), h("td", { class: "num", text: time(one.age * 1000) }), h("td", { class: "why", text: one.why }),
      h("td", { class: "mono", text: one.id || "–" }), h("td", { class: "muted", text: one.client }))));
  }

  const list = (panel) => {
    const known = new Map();
    return (found) => {
      panel.show(found.length, found.length ? plural(found.length, "request") : "");
      const elements = found.map((one) => {
        const key = `${one.model}\n${one.arrived}\n${one.seconds}\n${one.id}`;
        if (!known.has(key)) known.set(key, told(one));
        return known.get(key);
      });
      const shown = [...panel.content.children];
      if (elements.length !== shown.length || elements.some((element, at) => element !== shown[at])) put(panel.content, ...elements);
      for (const key of known.keys()) if (!known.get(key).isConnected) known.delete(key);
    };
  };

  repeat(flight, "dashboard/inflight", EVERY, showFlight);
  repeat(slowest, "dashboard/slowest", SLOWLY, list(slowest));
  repeat(failed, "dashboard/failed", SLOWLY, list(failed));
  return {
    elements: [h("div", { class: "bar" }, h("h1", { text: "Requests" })), flight.element, slowest.element, failed.element],
    close() { open = false; },
  };
}

function panel(title, words) {
  const summary = h("span", { class: "muted" }), empty = h("p", { class: "empty", text: "Looking …" }), problem = h("p", { class: "bad", role: "status" }), content = h("div");
  return {
    element: h("section", { class: "card" }, h("div", { class: "bar" }, h("h2", { text: title }), summary), problem, content, empty),
    content, problem,
    show(number, text) {
      empty.hidden = Boolean(number);
      say(empty, words);
      say(summary, text);
    },
  };
}

/** One explained request: a line, and below it, when it is opened, what its time went to. */
function told(one) {
  const line = h("span", { class: "ask" }, h("span", { class: "took", text: time(one.seconds * 1000) }), h("span", { text: `${one.model} ${one.version}` }),
    one.error ? chip("FAILED") : null, one.id ? h("code", { text: one.id }) : null, h("span", { class: "words", text: one.words || one.error }));
  const element = h("details", {}, h("summary", {}, line));
  element.addEventListener("toggle", () => { if (element.open && element.children.length === 1) element.append(timeline(one)); });
  return element;
}

export function timeline(one) {
  const total = one.seconds || 1e-9;
  const bar = h("div", { class: "time", "aria-hidden": "true" });
  for (const part of one.intervals) {
    const piece = h("i", { class: `k-${part.kind}`, title: part.words });
    piece.style.left = `${Math.min(100, (100 * part.at) / total)}%`;
    piece.style.width = `${Math.min(100, (100 * part.seconds) / total)}%`;
    bar.append(piece);
  }
  const parts = h("ol", { class: "parts" }, ...one.intervals.map((part) => h("li", {},
    h("b", { class: `k-${part.kind}`, "aria-hidden": "true" }), h("span", { text: NAMES[part.kind] ?? part.kind }), h("span", { class: "num", text: time(part.seconds * 1000) }), h("span", { class: "words", text: part.words }))));
  const when = new Date(one.arrived * 1000);
  const facts = [`came at ${when.toLocaleTimeString()}`, one.instance && `executed by ${one.instance}`, one.batch > 1 && `in a batch of ${one.batch}`].filter(Boolean);
  return h("div", { class: "told" }, one.intervals.length ? bar : null, parts, h("p", { class: "muted small", text: facts.join(", ") }), one.error ? h("p", { class: "bad", text: one.error }) : null,
    ...one.calls.map((call) => h("div", {}, h("p", {}, h("b", { text: `called ${call.model} ${call.version}` }), `, ${time(call.seconds * 1000)}: ${call.words}`), timeline(call))));
}
