// One model: its versions and their states, why a load failed and where, what it does, where each value of its config comes from.
import { chip, count, h, plural, put, say, time } from "./dom.js";
import { plots, stateChip } from "./overview.js";
import { ask, askJson } from "./stream.js";
import { tryIt } from "./tryit.js";

const EVERY = 3000; // milliseconds between two looks at the details

const ORIGINS = { model: "auto-complete", default: "default", override: "load request" };

export function modelView(store, name) {
  const heading = h("h1", { text: name });
  const states = h("span", { class: "row" });
  const problem = h("p", { class: "bad", role: "status" });
  const charts = plots(`Model ${name}`);
  const failure = h("div"), facts = h("section", { class: "card" }), place = h("div", { class: "stack" }), control = h("div", { class: "bar" });
  const config = h("section", { class: "card stack" }, h("h2", { text: "Config" }), h("p", { class: "empty", text: "Looking …" }));
  const loads = h("section", { class: "card stack" }, h("h2", { text: "Batches and instances" }), h("p", { class: "empty", text: "Looking …" }));
  const choice = h("select", { "aria-label": "Version", onchange: () => { chosen = choice.value; show(); } });
  let open = true, found = null, chosen = "", formed = "", told = "", shownStates = "", wait = () => {};

  (async () => {
    while (open) {
      if (!document.hidden) await look();
      await new Promise((resolve) => { wait = resolve; setTimeout(resolve, EVERY); });
    }
  })();

  async function look() {
    try {
      found = await askJson(`dashboard/model/${encodeURIComponent(name)}`);
      say(problem, "");
    } catch (error) { say(problem, error.message); return; }
    if (open) show();
  }

  function show() {
    if (!found) return;
    const versions = found.versions.map((one) => one.version);
    if (!versions.includes(chosen)) chosen = versions[versions.length - 1] ?? "";
    const text = versions.join(" ");
    if (choice.dataset.told !== text) {
      choice.dataset.told = text;
      put(choice, ...versions.map((one) => h("option", { value: one, text: `version ${one}` })));
      choice.hidden = versions.length < 2;
    }
    choice.value = chosen;
    showFailure(found.failure);
    const version = found.versions.find((one) => one.version === chosen);
    facts.hidden = config.hidden = loads.hidden = charts.element.hidden = !version;
    if (!version) { put(place); formed = ""; return; }
    const key = JSON.stringify([version.version, version.inputs, version.outputs, version.decoupled]);
    if (formed !== key) { formed = key; put(place, tryIt(name, version)); }
    const now = JSON.stringify(version);
    if (told === now) return;
    told = now;
    showFacts(version);
    showConfig(version);
    showLoads(version);
  }

  function showFailure(one) {
    const text = JSON.stringify(one);
    if (failure.dataset.told === text) return;
    failure.dataset.told = text;
    put(failure, ...(one ? [h("section", { class: "card failure" }, h("h2", { text: "The last load failed" }), h("p", { text: one.message }),
      one.place ? h("p", { class: "mono", text: one.place }) : null, one.source ? h("pre", { tabindex: "0", text: one.source }) : null,
      one.causes.length ? h("ul", {}, ...one.causes.map((cause) => h("li", { class: "muted", text: cause }))) : null)] : []));
  }

  function showFacts(version) {
    const row = (title, value) => (value ? h("div", {}, h("dt", { text: title }), h("dd", { text: value })) : null);
    const spec = (one) => `${one.name} ${one.datatype} [${one.shape.join(", ")}]${one.optional ? ", optional" : ""}`;
    put(facts, h("dl", { class: "facts" },
      row("Backend", version.backend), row("Runs", version.placement && `${version.placement.where}: ${version.placement.reason}`),
      row("Inputs", version.inputs.map(spec).join("; ")), row("Outputs", version.outputs.map(spec).join("; ")),
      row("Largest batch", version.max_batch_size ? plural(version.max_batch_size, "row") : "does not batch"), row("Loaded in", time(version.load_seconds * 1000)),
      row("Answered", count(version.success)), row("From the cache", version.hits ? count(version.hits) : ""),
      row("Failed", Object.entries(version.failures).map(([reason, number]) => `${count(number)} ${reason.toLowerCase()}`).join(", "))));
  }

  let all = false;
  function showConfig(version) {
    const blank = ([, value, origin]) => origin === "default" && (value === "" || value === 0 || value === false || value === "FORMAT_NONE" || value === "PRIORITY_DEFAULT" || (typeof value === "object" && !Object.keys(value).length));
    const rows = version.config.filter((one) => all || !blank(one));
    const hidden = version.config.length - version.config.filter((one) => !blank(one)).length;
    const button = h("button", { type: "button", text: all ? "Hide empty defaults" : `Show ${hidden} empty defaults`, onclick: () => { all = !all; showConfig(version); config.querySelector("button")?.focus(); } });
    put(config, h("div", { class: "bar" }, h("h2", { text: "Config" }), h("span", { class: "muted mono small", text: version.source.kind === "file" ? version.source.path : version.source.kind === "override" ? "came with a load request" : "there is no config file" }), hidden ? h("span", { class: "end" }, button) : null),
      ...version.warnings.map((one) => h("p", { class: "warn", text: one })),
      h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of config values" }, h("table", {}, h("caption", { class: "hidden-visually", text: "Values of the config and where each comes from" }),
        h("thead", {}, h("tr", {}, ...["Field", "Value", "From"].map((title) => h("th", { scope: "col", text: title })))),
        h("tbody", {}, ...rows.map(([field, value, origin, line]) => h("tr", {}, h("td", { class: "mono name", text: field }), h("td", { class: "mono why", text: shown(value) }),
          h("td", {}, chip(origin, origin === "file" ? `line ${line}` : ORIGINS[origin] ?? origin))))))));
  }

  function showLoads(version) {
    const most = Math.max(1, ...version.batches.map(([, number]) => number));
    const bars = version.batches.map(([rows, number, , infer]) => {
      const fill = h("i");
      fill.style.width = `${(100 * number) / most}%`;
      return h("li", { class: "batchrow" }, h("span", { text: plural(rows, "row") }), h("span", { class: "meter", "aria-hidden": "true" }, fill), h("span", { class: "num", text: `${count(number)} × ${time(infer / number)}` }));
    });
    put(loads, h("h2", { text: "Batches and instances" }),
      bars.length ? h("ul", { class: "stack" }, ...bars) : h("p", { class: "empty", text: "Nothing has been executed yet." }),
      bars.length ? h("p", { class: "muted small", text: "How often so many rows were executed together, and how long the model computed each time." }) : null,
      h("ul", { class: "stack" }, ...version.instances.map((one) => h("li", { class: "row" }, h("code", { text: one.name }), one.healthy ? h("span", { class: "muted", text: one.running ? `executes ${plural(one.running, "request")}` : "is free" }) : h("span", { class: "bad", text: "is down" })))));
  }

  // --- control

  const message = h("span", { class: "muted", role: "status" });
  const act = (words, verb) => h("button", { type: "button", text: words, onclick: async (event) => {
    const button = event.currentTarget;
    button.disabled = true;
    say(message, `${words} …`);
    try {
      await ask(`v2/repository/models/${encodeURIComponent(name)}/${verb}`, { method: "POST", body: "{}", headers: { "Content-Type": "application/json" } });
      say(message, verb === "load" ? "It is loaded." : "It takes no more requests, and goes when those it has are answered.");
    } catch (error) { say(message, error.message); }
    button.disabled = false;
    wait();
  } });

  function greeted() {
    const may = store.hello.control && ["explicit", "on-demand"].includes(store.hello.mode);
    put(control, ...(may ? [act("Load or reload", "load"), act("Unload", "unload"), message] : []));
    control.hidden = !may;
  }

  function update() {
    const rows = [...store.rows.values()].filter((row) => row.name === name);
    const text = rows.map((row) => `${row.version}${row.state}${row.reason}`).join("\n");
    if (text !== shownStates) {
      shownStates = text;
      put(states, ...rows.map((row) => h("span", { class: "row" }, stateChip(row), h("span", { class: "muted", text: row.version ? `version ${row.version}` : "" }))));
      wait();
    }
    const row = rows.find((one) => one.version === chosen) ?? rows.find((one) => one.state === "READY");
    if (row) charts.update(row.points);
  }

  greeted();
  return {
    elements: [h("div", { class: "bar" }, heading, states, h("span", { class: "end" }, choice)), problem, control, failure, charts.element, facts, place, h("div", { class: "halves" }, config, loads)],
    update, greeted,
    close() { open = false; wait(); },
  };
}

const shown = (value) => (typeof value === "string" ? JSON.stringify(value) : Array.isArray(value) ? `[${value.map(shown).join(", ")}]` : JSON.stringify(value));
