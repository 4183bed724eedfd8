// What the server tells as it happens, and what is asked of it. A key, where it wants one, is kept as long as this tab is open.
import { $, say } from "./dom.js";

const KEY = "kernel-key";
const HIDDEN = 30_000; // milliseconds after which a page that nobody looks at is told nothing more

function headers() {
  const key = sessionStorage.getItem(KEY);
  if (!key) return {};
  const at = key.indexOf(":");
  return at > 0 && /^[\w-]+$/.test(key.slice(0, at)) ? { [key.slice(0, at)]: key.slice(at + 1).trim() } : { Authorization: `Bearer ${key}` };
}

export const setKey = (key) => sessionStorage.setItem(KEY, key);
export const hasKey = () => Boolean(sessionStorage.getItem(KEY));

/** What the server answers; throws an Error with its words. */
export async function ask(path, options = {}) {
  const response = await fetch(path, { ...options, headers: { ...headers(), ...options.headers } });
  if (!response.ok) throw await problem(response);
  return response;
}

export const askJson = async (path, options) => (await ask(path, options)).json();

async function problem(response) {
  const text = await response.text();
  let words = text.slice(0, 2000);
  try { words = JSON.parse(text).error ?? words; } catch { /* no JSON: as it is */ }
  const error = new Error(words || `${response.status} ${response.statusText}`);
  error.status = response.status;
  return error;
}

/** Call `on[event](value)` for what the server tells, for as long as somebody looks; `refused(error)` where it will not. */
export async function listen(on, refused) {
  let controller = null, timer = 0;
  let wake = () => {};
  document.addEventListener("visibilitychange", () => {
    clearTimeout(timer);
    if (document.hidden) timer = setTimeout(() => controller?.abort(), HIDDEN);
    else wake();
  });
  for (let failures = 0; ; failures++) {
    controller = new AbortController();
    let why = ""; // the server will not tell, in its words
    try {
      const response = await ask("dashboard/events", { signal: controller.signal, headers: { Accept: "text/event-stream" } });
      await read(response.body.getReader(), on, () => { failures = 0; status("live", "live"); });
    } catch (error) {
      why = error.status ? error.message : "";
      if (error.status === 401 || error.status === 403) { status("lost", "refused"); await refused(error); continue; }
    }
    status("lost", document.hidden ? "paused" : why || "reconnecting");
    await new Promise((resolve) => {
      wake = resolve;
      if (!document.hidden) setTimeout(resolve, Math.min(500 * 2 ** failures, 5000));
    });
  }
}

async function read(reader, on, arrived) {
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += decoder.decode(value, { stream: true });
    let end;
    let at = 0;
    while ((end = rest.indexOf("\n\n", at)) >= 0) {
      const lines = rest.slice(at, end).split("\n");
      at = end + 2;
      if (lines.length === 2) on[lines[0].slice(7)]?.(JSON.parse(lines[1].slice(6)));
    }
    rest = rest.slice(at);
    arrived();
  }
}

function status(kind, words) {
  const link = $("link");
  link.className = `link ${kind}`;
  say(link, words);
}
