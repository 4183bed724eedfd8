// A form that is made of a model's inputs: numbers, text, an image or a file each. It shows the answer, and the request as code.
import { count, h, plural, put, say, time } from "./dom.js";
import { curl, python } from "./code.js";
import { ask } from "./stream.js";
import { element, numbers, pixels, product, SIZES, strings } from "./tensors.js";

const SHOWN = 400; // values of an output that are shown

const SCALES = { "0 to 1": (v) => v / 255, "0 to 255": (v) => v, "−1 to 1": (v) => v / 127.5 - 1, ImageNet: (v, c) => (v / 255 - [0.485, 0.456, 0.406][c % 3]) / [0.229, 0.224, 0.225][c % 3] };

export function tryIt(name, version) {
  const fields = version.inputs.map((spec) => input(spec));
  const answer = h("div", { class: "stack" }, h("p", { class: "empty", text: "The answer will stand here." }));
  const problem = h("p", { class: "bad", role: "alert" });
  const code = { curl: h("pre", { class: "code", tabindex: "0", role: "tabpanel", "aria-label": "The request as curl" }), python: h("pre", { class: "code", tabindex: "0", role: "tabpanel", "aria-label": "The request as Python" }) };
  const send = h("button", { type: "submit", class: "primary", text: "Send" });
  const files = h("p", { class: "small", hidden: true });
  const tabs = Object.keys(code).map((kind) => h("button", { type: "button", role: "tab", text: kind === "curl" ? "curl" : "Python", "aria-selected": String(kind === "curl"), onclick: () => choose(kind) }));
  code.python.hidden = true;
  let kept = [];

  function choose(kind) {
    Object.keys(code).forEach((one, at) => { code[one].hidden = one !== kind; tabs[at].setAttribute("aria-selected", String(one === kind)); });
  }

  /** What the form says, as tensors: {name, datatype, shape, data or bytes}. Throws an Error with a field's problem. */
  const tensors = async () => (await Promise.all(fields.map((field) => field.read()))).filter(Boolean);

  async function write() {
    for (const url of kept) URL.revokeObjectURL(url);
    kept = [];
    try {
      const given = await tensors();
      say(problem, "");
      const request = built(name, version, given);
      say(code.curl, curl(location, request));
      say(code.python, python(location, name, version, given));
      const saved = [...(request.binary ? [["request.bin", request.body]] : []), ...given.filter((one) => one.bytes).map((one) => [`${one.name}.bin`, one.raw ?? one.bytes])];
      files.hidden = !saved.length;
      put(files, "The code reads ", ...saved.flatMap(([file, body], at) => {
        const url = URL.createObjectURL(new Blob([body]));
        kept.push(url);
        return [at ? ", " : "", h("a", { href: url, download: file, text: file })];
      }), ".");
      return request;
    } catch (error) {
      say(problem, error.message);
      return null;
    }
  }

  const form = h("form", { class: "stack", novalidate: true }, h("div", { class: "inputs" }, ...fields.map((field) => field.element)), problem, h("div", { class: "row" }, send));
  let timer = 0;
  form.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(write, 250); });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const request = await write();
    if (!request) return;
    send.disabled = true;
    const began = performance.now();
    try {
      const response = await ask(request.path, { method: "POST", body: request.body, headers: { ...request.headers, ...(version.decoupled ? {} : { "x-explain": "1" }) } });
      if (version.decoupled) showStream(await response.text(), performance.now() - began);
      else show(await response.json(), performance.now() - began);
    } catch (error) {
      put(answer, h("p", { class: "bad", text: error.message }));
    }
    send.disabled = false;
  });

  function show(body, ms) {
    const explained = body.parameters?.explain;
    put(answer, h("p", {}, h("span", { class: "good", text: "Answered" }), ` in ${time(ms)}, as this browser saw it.`),
      explained ? h("p", { class: "muted", text: explained }) : null,
      ...(body.outputs ?? []).map((one) => h("div", { class: "output" }, h("p", {}, h("b", { text: one.name }), h("span", { class: "muted", text: ` ${one.datatype} [${one.shape.join(", ")}]` })), h("pre", { tabindex: "0", text: values(one) }))));
  }

  function showStream(text, ms) {
    const events = text.split("\n\n").filter((one) => one.startsWith("data: ")).map((one) => one.slice(6));
    put(answer, h("p", {}, h("span", { class: "good", text: plural(events.length, "response") }), ` in ${time(ms)}.`), h("pre", { tabindex: "0", text: events.join("\n").slice(0, 20_000) }));
  }

  write();
  return h("div", { class: "halves" },
    h("section", { class: "card stack" }, h("h2", { text: "Try it" }), version.sequences ? h("p", { class: "muted", text: "Its requests are parts of sequences; this form sends a sequence of one." }) : null, fields.length ? null : h("p", { class: "empty", text: "It has no inputs." }), form),
    h("div", { class: "column" },
      h("section", { class: "card stack", "aria-live": "polite" }, h("h2", { text: "Answer" }), answer),
      h("section", { class: "card stack" }, h("div", { class: "bar" }, h("h2", { text: "The same request as code" }), h("div", { class: "tabs end", role: "tablist", "aria-label": "Language" }, ...tabs)), code.curl, code.python, files)));
}

function values(output) {
  const data = output.data ?? [];
  const short = ["FP16", "BF16", "FP32"].includes(output.datatype); // which have no more digits than these
  const text = data.slice(0, SHOWN).map((value) => (typeof value === "string" ? JSON.stringify(value) : String(short && typeof value === "number" ? Number(value.toPrecision(7)) : value)));
  const inner = output.shape[output.shape.length - 1];
  const lines = [];
  const wide = output.shape.length > 1 && inner > 1 && inner <= 32 ? inner : typeof data[0] === "string" ? 1 : 16;
  for (let at = 0; at < text.length; at += wide) lines.push(text.slice(at, at + wide).join("  "));
  if (data.length > SHOWN) lines.push(`… ${count(data.length - SHOWN)} more`);
  return lines.join("\n") || "(nothing)";
}

// --- one input

function input(spec) {
  const bytes = spec.datatype === "BYTES";
  const fixed = spec.shape.map((size) => (size < 0 ? 1 : size));
  const looks = !bytes && spec.shape.length >= 3 && [spec.shape[spec.shape.length - 3], spec.shape[spec.shape.length - 1]].some((size) => size === 1 || size === 3);
  const kinds = [bytes ? "text" : "numbers", ...(looks || bytes ? ["image"] : []), "file"];
  const label = (words, field) => h("label", {}, h("span", { class: "muted", text: words }), field);
  const kind = h("select", { "aria-label": `${spec.name} as`, onchange: () => swap() }, ...kinds.map((one) => h("option", { value: one, text: one })));
  const shape = h("input", { type: "text", "aria-label": `${spec.name} shape`, value: fixed.join(", "), size: 12, spellcheck: "false" });
  const area = h("textarea", { rows: 3, spellcheck: "false", "aria-label": `Values of ${spec.name}`, placeholder: bytes ? "one text a line" : "numbers, with spaces or commas between, or JSON" });
  const file = h("input", { type: "file", "aria-label": `File for ${spec.name}`, onchange: () => preview() });
  const image = h("img", { class: "preview", alt: "", hidden: true });
  const layout = h("select", { "aria-label": `${spec.name} layout` }, ...["channels first", "channels last"].map((one) => h("option", { text: one })));
  const scale = h("select", { "aria-label": `${spec.name} values` }, ...Object.keys(SCALES).map((one) => h("option", { text: one })));
  const skip = spec.optional ? h("input", { type: "checkbox", checked: true, "aria-label": `Leave ${spec.name} out` }) : null;
  const fills = ["zeros", "ones", "random", "count"].map((how) => h("button", { type: "button", text: how, "aria-label": `Fill ${spec.name} with ${how}`, onclick: () => { area.value = filled(how); area.dispatchEvent(new Event("input", { bubbles: true })); } }));
  const typed = h("div", { class: "stack" }, area, bytes ? null : h("div", { class: "row" }, ...fills));
  const picture = h("div", { class: "row" }, label("layout", layout), label("values", scale));
  const chosen = h("div", { class: "stack" }, h("div", { class: "row" }, file, image), picture);
  if (spec.shape[spec.shape.length - 1] === 3 || spec.shape[spec.shape.length - 1] === 1) layout.selectedIndex = spec.shape[spec.shape.length - 3] === 3 ? 0 : 1;
  if (spec.datatype.startsWith("UINT8")) scale.selectedIndex = 1;
  let url = "";

  function swap() {
    typed.hidden = kind.value !== "text" && kind.value !== "numbers";
    chosen.hidden = !typed.hidden;
    picture.hidden = kind.value !== "image" || bytes;
    file.accept = kind.value === "image" ? "image/*" : "";
    preview();
  }

  function preview() {
    if (url) URL.revokeObjectURL(url);
    url = "";
    image.hidden = !(kind.value === "image" && file.files[0]);
    if (!image.hidden) image.src = url = URL.createObjectURL(file.files[0]);
  }

  function sizes() {
    const found = shape.value.split(/[\s,]+/).filter(Boolean).map(Number);
    if (!found.length && spec.shape.length) throw new Error(`${spec.name}: its shape is missing`);
    if (found.some((size) => !Number.isInteger(size) || size < 0)) throw new Error(`${spec.name}: the shape “${shape.value}” has something in it that is no size`);
    return found;
  }

  function filled(how) {
    let number;
    try { number = Math.min(product(sizes()), 4096); } catch { return area.value; }
    const whole = !spec.datatype.startsWith("FP") && !spec.datatype.startsWith("BF");
    const one = { zeros: () => 0, ones: () => 1, count: (at) => at, random: () => (spec.datatype === "BOOL" ? Math.round(Math.random()) : whole ? Math.floor(Math.random() * 100) : Math.round(Math.random() * 1000) / 1000) }[how];
    return Array.from({ length: number }, (_, at) => one(at)).join(" ");
  }

  async function read() {
    if (skip?.checked) return null;
    const tensor = { name: spec.name, datatype: spec.datatype, shape: sizes() };
    if (kind.value === "numbers") return numbers(tensor, area.value);
    if (kind.value === "text") return strings(tensor, area.value);
    const picked = file.files[0];
    if (!picked) throw new Error(`${spec.name}: choose a file`);
    if (bytes) {
      const raw = new Uint8Array(await picked.arrayBuffer());
      if (product(tensor.shape) !== 1) throw new Error(`${spec.name}: a file is one value, and the shape [${tensor.shape.join(", ")}] wants ${product(tensor.shape)}`);
      return { ...tensor, bytes: element(raw), raw };
    }
    if (kind.value === "image") return pixels(tensor, picked, layout.selectedIndex === 0, SCALES[scale.value]);
    const raw = new Uint8Array(await picked.arrayBuffer());
    const wanted = product(tensor.shape) * SIZES[spec.datatype];
    if (raw.length !== wanted) throw new Error(`${spec.name}: the file has ${raw.length} bytes, and ${spec.datatype} [${tensor.shape.join(", ")}] wants ${wanted}`);
    return { ...tensor, bytes: raw };
  }

  if (!bytes) area.value = filled("ones");
  else area.value = Array.from({ length: Math.min(product(fixed), 16) }, () => "hello").join("\n");
  swap();
  const element_ = h("fieldset", {}, h("legend", {}, spec.name, h("span", { class: "muted", text: ` ${spec.datatype} [${spec.shape.join(", ")}]` })),
    h("div", { class: "row" }, label("as", kind), label("shape", shape), skip ? label("leave it out", skip) : null), typed, chosen);
  return { element: element_, read };
}

// --- the request

function built(name, version, given) {
  const base = `v2/models/${encodeURIComponent(name)}/versions/${encodeURIComponent(version.version)}`;
  const headers = { "Content-Type": "application/json" };
  if (version.decoupled) {
    const values = Object.fromEntries(given.map((one) => {
      if (one.bytes) throw new Error(`${one.name}: streams of this model take numbers and text here, no files`);
      return [one.name, one.data.length === 1 ? one.data[0] : one.data];
    }));
    return { path: `${base}/generate_stream`, body: JSON.stringify(values), headers, binary: false };
  }
  const inputs = given.map((one) => (one.bytes ? { name: one.name, shape: one.shape, datatype: one.datatype, parameters: { binary_data_size: one.bytes.length } } : { name: one.name, shape: one.shape, datatype: one.datatype, data: one.data }));
  const parameters = version.sequences ? { parameters: { sequence_id: 1 + Math.floor(Math.random() * 2 ** 31), sequence_start: true, sequence_end: true } } : {};
  const json = JSON.stringify({ inputs, ...parameters });
  const tails = given.filter((one) => one.bytes).map((one) => one.bytes);
  if (!tails.length) return { path: `${base}/infer`, body: json, headers, binary: false };
  const head = new TextEncoder().encode(json);
  const body = new Uint8Array(head.length + tails.reduce((sum, one) => sum + one.length, 0));
  body.set(head);
  let at = head.length;
  for (const one of tails) { body.set(one, at); at += one.length; }
  return { path: `${base}/infer`, body, headers: { "Content-Type": "application/octet-stream", "Inference-Header-Content-Length": String(head.length) }, binary: true };
}
