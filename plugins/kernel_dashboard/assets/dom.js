// Elements and texts. Whatever comes from the server becomes text, never markup.

/** An element. `given`: attributes; those that begin with "on" are listeners, `text` is its text. Further arguments are children. */
export function h(tag, given = {}, ...children) {
  return fill(document.createElement(tag), given, children);
}

export function svg(tag, given = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), given, children);
}

function fill(element, given, children) {
  for (const [name, value] of Object.entries(given)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "text") element.textContent = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Have an element hold these and nothing else; what is null or false is left out. */
export function put(element, ...children) {
  element.replaceChildren(...children.filter((child) => child !== null && child !== undefined && child !== false));
}

/** Set a text only where it differs: what a screen reader or a selection holds on to stays. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export const $ = (id) => document.getElementById(id);

export function count(value) {
  if (!isFinite(value)) return "–";
  if (value >= 9_999_500) return `${(value / 1e6).toPrecision(3)} M`;
  if (value >= 99_950) return `${(value / 1e3).toPrecision(3)} k`;
  if (value >= 100 || Number.isInteger(value)) return Math.round(value).toLocaleString("en");
  return value >= 10 ? value.toFixed(1) : value.toFixed(value >= 0.995 || value === 0 ? 1 : 2);
}

/** A time in milliseconds, for people. */
export function time(ms) {
  if (ms === null || ms === undefined || !isFinite(ms)) return "–";
  if (ms >= 59_950) return ms >= 3.6e6 ? `${(ms / 3.6e6).toPrecision(3)} h` : `${(ms / 6e4).toPrecision(3)} min`;
  if (ms >= 999.5) return `${(ms / 1e3).toPrecision(3)} s`;
  if (ms >= 0.9995) return `${ms.toPrecision(3)} ms`;
  return ms === 0 ? "0 ms" : `${Math.round(ms * 1000)} µs`;
}

export const plural = (number, what) => `${number.toLocaleString("en")} ${what}${number === 1 ? "" : "s"}`;

export const modelLink = (name) => `#/model/${encodeURIComponent(name)}`;

export const chip = (state, text = state) => h("span", { class: `chip ${state}`, text: text.toLowerCase() });
