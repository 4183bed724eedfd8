// What people type or choose, as tensors. What can't be one is an Error that names the input, what came and what was wanted.

export const SIZES = { BOOL: 1, UINT8: 1, UINT16: 2, UINT32: 4, UINT64: 8, INT8: 1, INT16: 2, INT32: 4, INT64: 8, FP16: 2, BF16: 2, FP32: 4, FP64: 8 };

export const product = (shape) => shape.reduce((all, size) => all * size, 1);

/** Numbers of a text: JSON, however nested, or separated by spaces, commas or semicolons. */
export function numbers(tensor, text) {
  let found;
  const trimmed = text.trim();
  // Whole numbers of 64 bits are kept as they were typed: a browser's numbers are too short for them.
  const words = trimmed.replace(/[[\]]/g, " ").split(/[\s,;]+/).filter(Boolean);
  if (tensor.datatype === "BOOL") found = words.map((word) => ({ true: true, 1: true, false: false, 0: false })[word.toLowerCase()] ?? fail(tensor, word, "true or false"));
  else found = words.map((word) => (/^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(word) ? whole(tensor, word) : fail(tensor, word, "a number")));
  const wanted = product(tensor.shape);
  if (found.length !== wanted) throw new Error(`${tensor.name}: there ${found.length === 1 ? "is 1 value" : `are ${found.length} values`}, and the shape [${tensor.shape.join(", ")}] wants ${wanted}`);
  return { ...tensor, data: found };
}

function whole(tensor, word) {
  const value = Number(word);
  if (tensor.datatype.startsWith("FP") || tensor.datatype.startsWith("BF")) return value;
  if (!Number.isInteger(value)) fail(tensor, word, "a whole number");
  if (!Number.isSafeInteger(value)) fail(tensor, word, "a number of at most 53 bits, as browsers have no others (a file has them)");
  return value;
}

function fail(tensor, word, wanted) {
  throw new Error(`${tensor.name}: “${word.slice(0, 40)}” came, wanted is ${wanted}`);
}

/** One text where the shape wants one, else one a line. */
export function strings(tensor, text) {
  const wanted = product(tensor.shape);
  const found = wanted === 1 ? [text] : text.split("\n");
  if (found.length !== wanted) throw new Error(`${tensor.name}: there ${found.length === 1 ? "is 1 line" : `are ${found.length} lines`}, and the shape [${tensor.shape.join(", ")}] wants ${wanted}`);
  return { ...tensor, data: found };
}

/** A value of BYTES as it is sent: its length in four bytes, then itself. */
export function element(raw) {
  const bytes = new Uint8Array(raw.length + 4);
  new DataView(bytes.buffer).setUint32(0, raw.length, true);
  bytes.set(raw, 4);
  return bytes;
}

/** A picture as a tensor of the shape's height and width. `first`: channels come before them. */
export async function pixels(tensor, file, first, scale) {
  const shape = tensor.shape.slice(-3);
  if (shape.length < 3 || product(tensor.shape) !== product(shape)) throw new Error(`${tensor.name}: a picture has three dimensions and is one, the shape is [${tensor.shape.join(", ")}]`);
  const [channels, height, width] = first ? shape : [shape[2], shape[0], shape[1]];
  if (channels !== 1 && channels !== 3) throw new Error(`${tensor.name}: a picture has 1 or 3 channels, the shape [${tensor.shape.join(", ")}] has ${channels} ${first ? "first" : "last"}`);
  if (height * width > 4096 * 4096 || !height || !width) throw new Error(`${tensor.name}: ${height} × ${width} is no size for a picture here`);
  let bitmap;
  try { bitmap = await createImageBitmap(file); } catch { throw new Error(`${tensor.name}: the browser can't read ${file.name} as a picture`); }
  const canvas = new OffscreenCanvas(width, height);
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, 0, 0, width, height);
  const { data } = context.getImageData(0, 0, width, height);
  const area = height * width;
  const values = new Float64Array(area * channels);
  for (let at = 0; at < area; at++) {
    for (let channel = 0; channel < channels; channel++) {
      const raw = channels === 1 ? 0.299 * data[4 * at] + 0.587 * data[4 * at + 1] + 0.114 * data[4 * at + 2] : data[4 * at + channel];
      values[first ? channel * area + at : at * channels + channel] = scale(raw, channel);
    }
  }
  return { ...tensor, bytes: packed(values, tensor.datatype) };
}

const VIEWS = { BOOL: Uint8Array, UINT8: Uint8ClampedArray, UINT16: Uint16Array, UINT32: Uint32Array, INT8: Int8Array, INT16: Int16Array, INT32: Int32Array, FP32: Float32Array, FP64: Float64Array };

function packed(values, datatype) {
  if (datatype === "UINT64" || datatype === "INT64") return new Uint8Array(BigInt64Array.from(values, (value) => BigInt(Math.round(value))).buffer);
  if (datatype === "BF16") return new Uint8Array(Uint16Array.from(new Uint32Array(Float32Array.from(values).buffer), (bits) => (bits + 0x8000) >>> 16).buffer);
  if (datatype === "FP16") return new Uint8Array(Uint16Array.from(values, half).buffer);
  return new Uint8Array(VIEWS[datatype].from(datatype.startsWith("FP") ? values : values.map(Math.round)).buffer);
}

/** The bits of a 16-bit float. */
function half(value) {
  const bits = new Uint32Array(Float32Array.of(value).buffer)[0];
  const sign = (bits >>> 16) & 0x8000, exponent = ((bits >>> 23) & 0xff) - 112, part = bits & 0x7fffff;
  if (exponent >= 31) return sign | 0x7c00;
  if (exponent <= 0) return exponent < -10 ? sign : sign | (((part | 0x800000) >>> (14 - exponent)) + (((part | 0x800000) >>> (13 - exponent)) & 1));
  return sign | ((exponent << 10) + (part >>> 13) + ((part >>> 12) & 1));
}
