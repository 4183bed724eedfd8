// A request as code that can be copied: curl, and Python with the client that Triton's users have.

const LONG = 8000; // characters of a request above which the code reads it from a file

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

export function curl(place, request) {
  const url = new URL(request.path, place.href.split("#")[0]).href;
  const lines = [`curl -s ${quoted(url)}`, ...Object.entries(request.headers).map(([name, value]) => `  -H ${quoted(`${name}: ${value}`)}`)];
  if (request.binary) lines.push("  --data-binary @request.bin");
  else if (request.body.length > LONG) lines.push("  --data-binary @request.json  # the request is too long to stand here");
  else lines.push(`  -d ${quoted(request.body)}`);
  return lines.join(" \\\n");
}

const TYPES = { BOOL: "bool_", FP16: "float16", BF16: "float32", FP32: "float32", FP64: "float64", BYTES: "object_" };
const type = (datatype) => `np.${TYPES[datatype] ?? datatype.toLowerCase()}`;
const text = (value) => JSON.stringify(value);

function literal(value) {
  if (typeof value === "boolean") return value ? "True" : "False";
  return typeof value === "string" ? `${text(value)}.encode()` : String(value);
}

function array(one) {
  const shape = `(${one.shape.join(", ")}${one.shape.length === 1 ? "," : ""})`;
  const file = text(`${one.name}.bin`);
  if (one.raw) return `np.array([open(${file}, "rb").read()], dtype=np.object_).reshape${shape}`;
  if (one.bytes) return `np.fromfile(${file}, dtype=${type(one.datatype)}).reshape${shape}`;
  if (one.data.length > 1 && one.data.every((value) => value === one.data[0]) && one.datatype !== "BYTES") return `np.full(${shape}, ${literal(one.data[0])}, dtype=${type(one.datatype)})`;
  if (one.data.length > 512) return `np.array(…, dtype=${type(one.datatype)}).reshape${shape}  # ${one.data.length} values`;
  return `np.array([${one.data.map(literal).join(", ")}], dtype=${type(one.datatype)}).reshape${shape}`;
}

export function python(place, name, version, given) {
  if (version.decoupled) return `# pip install tritonclient[grpc]: a model that answers several times is asked over gRPC,\n# by InferenceServerClient.start_stream and async_stream_infer.`;
  const secure = place.protocol === "https:";
  const names = given.map((_, at) => `x${at}`);
  const lines = ["# pip install tritonclient[http]", "import numpy as np", "import tritonclient.http as http", "", `client = http.InferenceServerClient(${text(place.host)}${secure ? ", ssl=True" : ""})`];
  given.forEach((one, at) => {
    lines.push(`${names[at]} = http.InferInput(${text(one.name)}, [${one.shape.join(", ")}], ${text(one.datatype)})`, `${names[at]}.set_data_from_numpy(${array(one)})`);
  });
  const sequence = version.sequences ? ", sequence_id=1, sequence_start=True, sequence_end=True" : "";
  lines.push(`answer = client.infer(${text(name)}, [${names.join(", ")}], model_version=${text(version.version)}${sequence})`);
  for (const one of version.outputs) lines.push(`print(answer.as_numpy(${text(one.name)}))`);
  return lines.join("\n");
}
