// The page: which view is shown, and what all of them share. Views are made when they are opened, and told what is new.
import { $, h, put, say } from "./dom.js";
import { graphView } from "./graph.js";
import { modelView } from "./model.js";
import { overview } from "./overview.js";
import { requestsView } from "./requests.js";
import { Store } from "./store.js";
import { listen, setKey } from "./stream.js";

const store = new Store();
const VIEWS = [
  { path: "", title: "Models", make: () => overview(store) },
  { path: "requests", title: "Requests", make: () => requestsView(store) },
  { path: "graph", title: "Calls", make: () => graphView() },
];
let view = null;
let due = false;

function route() {
  const [, path = "", rest = ""] = /^#?\/?([^/]*)\/?(.*)$/.exec(location.hash) ?? [];
  if (path === "main") return;
  view?.close?.();
  store.watched = path === "model" ? decoded(rest) : "";
  const chosen = VIEWS.find((one) => one.path === path) ?? VIEWS[0];
  view = path === "model" ? modelView(store, store.watched) : chosen.make();
  const title = path === "model" ? store.watched : chosen.title;
  document.title = `${title} – ${store.hello.server ?? "kernel"}`;
  put($("main"), ...view.elements);
  put($("nav"), ...VIEWS.map((one) => h("li", {}, h("a", {
    href: `#/${one.path}`, text: one.title, "aria-current": one === chosen && path !== "model" ? "page" : null,
  }))));
  update();
}

function decoded(text) {
  try { return decodeURIComponent(text); } catch { return text; }
}

function update() {
  if (due) return;
  due = true;
  requestAnimationFrame(() => {
    due = false;
    view?.update?.();
  });
}

function greet(hello) {
  store.hear(hello);
  say($("server"), hello.server);
  say($("about"), `kernel ${hello.version}`);
  $("notice").hidden = true;
}

/** Of several replicas the sums are shown; which of them these are of, and which does not answer. */
function group({ replicas, trouble }) {
  const which = replicas.length === 1 ? `replica ${replicas[0]}` : `sums of replicas ${replicas.join(", ")}`;
  say($("about"), `kernel ${store.hello.version} · ${which}${trouble ? `; what others told before holds: ${trouble}` : ""}`);
}

/** The server wants a key, or will not be seen at all. Resolves once there is something to try. */
function refused(error) {
  return new Promise((resolve) => {
    const header = /expecting header '([^']+)'/.exec(error.message)?.[1];
    const field = h("input", { type: "password", autocomplete: "off", "aria-label": "Key", required: true });
    const form = h("form", {}, field, h("button", { type: "submit", text: "Use this key" }));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      setKey(header ? `${header}: ${field.value}` : field.value);
      resolve();
    });
    const notice = $("notice");
    put(notice, h("p", { text: `The server shows its figures only to who has a key: ${error.message}` }), form);
    notice.hidden = false;
  });
}

// --- theme

const THEMES = ["system", "light", "dark"];
const dark = matchMedia("(prefers-color-scheme: dark)");
let theme = "system";
try { theme = localStorage.getItem("kernel-theme") ?? "system"; } catch { /* storage is switched off */ }

function paint() {
  document.documentElement.dataset.theme = theme === "system" ? (dark.matches ? "dark" : "light") : theme;
  say($("theme"), `Theme: ${theme}`);
  update();
}

$("theme").addEventListener("click", () => {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  try { localStorage.setItem("kernel-theme", theme); } catch { /* it holds until the page is left */ }
  paint();
});
dark.addEventListener("change", paint);

paint();
addEventListener("hashchange", () => { route(); $("main").focus({ preventScroll: true }); scrollTo(0, 0); });
route();
listen({
  hello: (told) => { greet(told); view?.greeted?.(); },
  group,
  history: (told) => { store.history(told); update(); },
  rows: (told) => { store.take(told); if (!store.last) update(); },
  gone: (told) => { store.gone(told); update(); },
  round: (told) => { store.round(told); update(); },
}, refused);
