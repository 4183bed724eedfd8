"""Which case stands for which observed row of the HTTP contract, and why some row has none; as in rows_grpc.py."""

from __future__ import annotations

from .rows_grpc import Row

__all__ = ["ROWS"]

ROWS = [
    # 1. Transport.
    Row("1.", "| JSON output |", reason="answers are compared value by value, in order; white space isn't"),
    Row("1.", "| `Content-Type` of errors |", ("to an unknown model", "unknown input", "FP16 in, JSON out")),
    Row("1.", "| Status reason phrase |", ("live by POST", "unknown path")),
    Row("1.", "| Content-Type of requests |", ("header names in any case", "BOOL and id")),
    Row(
        "1.",
        "| Trailing slash |",
        (
            "trailing slash",
            "query string is ignored",
            "percent encoding isn't decoded",
            "HTTP/1.0",
            "not HTTP",
            "chunked*",
        ),
    ),
    Row(
        "1.",
        "| Unknown path |",
        ("unknown path", "root", "models without a name", "version that isn't digits", "trace settings of a version"),
    ),
    Row("1.", "| Wrong method |", ("* by POST", "* by HEAD", "* by GET", "* by PUT")),
    Row(
        "1.",
        "| Client disconnect |",
        reason="the reference doesn't notice; what ours does is in tests/conformance/test_leaving.py",
    ),
    Row("1.1", "All mappings verified", ("behave: UNKNOWN", "behave: ALREADY_EXISTS", "inputs is a number")),
    # 1.2 Types in JSON.
    Row("1.2", "| member absent |", ("an empty object", "input without a name", "input without a shape")),
    Row("1.2", "| not array |", ("inputs is a number", "shape is a number")),
    Row("1.2", "| not string |", ("id is a number", "BYTES from a number")),
    Row("1.2", "| not bool |", ("BOOL from numbers", "sequence start is a number")),
    Row("1.2", "| not int (", ("INT32 from a float", "INT32 from a string")),
    Row("1.2", "| not unsigned (", ("UINT8 negative", "time-out is a float", "negative shape")),
    Row("1.2", "| not object when", ("parameters is a number",)),
    Row("1.2", "| malformed JSON |", ("not JSON", "cut-off JSON", "generate, nothing")),
    Row(
        "1.2",
        "They are usually prefixed",
        ("name is a number", "datatype is a number", "binary_data is a number", "size is a string"),
    ),
    # 2. Endpoints.
    Row(
        "2.",
        "| GET `/metrics` on the metrics port |",
        reason="test_metrics.py has it: another port, and a page whose values are a matter of chance",
    ),
    Row("2.", "Restricted APIs:", ("restricted: *", "restricted, *")),
    Row("2.", "Version string errors", ("metadata of a version beyond 64 bits", "to a version beyond 64 bits")),
    Row("2.1", '`{"name":"triton"', ("server metadata",)),
    Row("2.2", '`{"name":…', ("metadata of types", "metadata of multi")),
    Row("2.2", "* `versions`", ("metadata of multi", "metadata of a version")),
    Row("2.2", "* `platform`", ("metadata of ensemble", "metadata of types")),
    Row("2.2", "* `shape`", ("metadata of batch8", "metadata of reshape")),
    Row("2.2", "* datatype", ("metadata of text1",)),
    Row("2.3", "Protobuf-JSON of ModelConfig", ("config of *",)),
    Row(
        "2.4", "Not ready, unknown model", ("unknown model ready", "unknown version ready", "model ready after unload")
    ),
    Row("2.5", "| never loaded |", ("metadata of an unknown model", "to an unknown model")),
    Row("2.5", "| loaded once, no READY", ("metadata after unload", "infer after unload")),
    Row("2.5", "| version never known |", ("metadata of an unknown version",)),
    Row(
        "2.5", "| version known but not READY", ("metadata of a version after unload", "infer a version of what failed")
    ),
    Row("2.5", "| stats, unknown model |", ("statistics of an unknown model",)),
    Row("2.5", "| stats, bad version |", ("statistics of an unknown version",)),
    Row("2.5", "| trace, unknown model |", ("trace settings of an unknown model",)),
    # 3. Inference.
    Row("3.1", "* With compression H", ("compressed binary both ways",)),
    Row("3.1", "* `H = 0` → raw binary", ("raw request*",)),
    Row("3.1", "* Non numeric H", ("header length isn't a number",)),
    Row("3.1", "* H < 0 or > body", ("header length negative", "header length beyond the body")),
    Row("3.1", "Response: if at least one output", ("binary both ways", "binary of an empty output")),
    Row("3.2", "`Input must set only one", ("no data", "data and binary size", "input from a region, and data")),
    Row("3.3", "| BOOL |", ("BOOL *",)),
    Row("3.3", "| INT8..INT64 |", ("INT8*", "INT16", "INT32*", "INT64*")),
    Row("3.3", "| UINT8..UINT64 |", ("UINT8*", "UINT16", "UINT32", "UINT64*")),
    Row("3.3", "| FP32/FP64 |", ("FP32*", "FP64*")),
    Row("3.3", "| FP16/BF16 |", ("FP16", "BF16")),
    Row("3.3", "| BYTES |", ("BYTES",)),
    Row(
        "3.3",
        "Nesting of `data`",
        ("nested data*", "ragged data*", "too few elements", "too many elements", "BYTES, too few", "empty tensor"),
    ),
    Row("3.4", "1. input name unknown", ("unknown input", "doubled input", "unknown output", "doubled output")),
    Row("3.4", "2. input count", ("an input is missing*", "no inputs", "unknown input beside the right one")),
    Row("3.4", "3. batch", ("batch of shape nothing", "batches differ", "batch too large*")),
    Row("3.4", "4. dtype", ("another datatype*", "unknown datatype")),
    Row("3.4", "5. shape", ("rank too high", "wrong inner dimension", "batch dimension missing")),
    Row("3.4", "6. byte size", ("size too small for the shape",)),
    Row("3.4", "A batch dim of 0", ("batch of none",)),
    Row("3.4", "Optional inputs may be omitted", ("optional inputs absent", "no inputs, all optional")),
    Row("3.5", "Header forwarding:", ("headers forwarded*", "headers aren't forwarded")),
    Row(
        "3.6",
        "`binary_data` (bool)",
        ("binary_data*", "output to a region and classes", "output to a region and binary"),
    ),
    Row("4.", '`{"id"?', ("BOOL and id", "outputs in another order", "FP16 in, JSON out", "ensemble")),
    Row("5.", "`outputs[].parameters.classification: k`", ("classes*", "more classes than there are", "no classes")),
    # 6. generate.
    Row(
        "6.",
        "* Input JSON",
        ("generate, tensors of variable size", "generate, a matrix from a list", "generate, nested lists"),
    ),
    Row(
        "6.",
        "* `id` → request id",
        ("generate, what the request was", "generate, a parameter that is null", "generate, parameters"),
    ),
    Row("6.", "* Works for decoupled", ("generate, two outputs", "generate_stream, a normal model")),
    Row("6.", "* `/generate`:", ("generate, one response", "generate, two responses", "generate, no response")),
    Row(
        "6.",
        "* `/generate_stream`:",
        ("generate_stream, two responses", "generate_stream, no response", "generate_stream, an error first"),
    ),
    Row("6.", "* Errors before execution", ("generate, nothing", "generate, an unknown model")),
    Row("6.", "* Content-Encoding other than identity", ("generate, compressed", "generate, accepts gzip")),
    Row("6.", "* FP16: 400", ("generate, FP16", "generate, an empty matrix")),
    Row("6.", "* ORCA header", reason="optional, and the observed version has no such header"),
    # 7. Compression.
    Row(
        "7.",
        "Request `Content-Encoding",
        ("gzip request", "deflate request", "unsupported content encoding", "not compressed at all"),
    ),
    Row("7.", "Response: best of", ("accepts *", "an error to who accepts gzip", "metadata to who accepts gzip")),
    # 8. Shared memory.
    Row("8.", "System register body", ("register",)),
    Row("8.", "| status (all) |", ("regions: all", "CUDA regions: none")),
    Row(
        "8.",
        "| status unknown region |",
        ("regions: status of an unknown one", "CUDA regions: status of an unknown one"),
    ),
    Row("8.", "| register again |", ("register again",)),
    Row("8.", "| shm_open fails |", ("register: an object that isn't there",)),
    Row(
        "8.",
        "| offset+byte_size > object size |",
        ("register: more than the object has", "register: beyond the object"),
    ),
    Row("8.", "| no key / byte_size |", ("register: no key", "register: no size")),
    Row("8.", "| no region in URL |", ("register: no region", "CUDA register: no region")),
    Row("8.", "| unregister unknown region |", ("unregister an unknown region",)),
    Row("8.", "| unregister without region |", ("unregister all",)),
    Row("8.", "| empty register body |", ("register: no body",)),
    Row("8.", "| infer: unknown region |", ("input from a region, unknown", "output to a region, unknown")),
    Row("8.", "| infer: offset beyond |", ("input from a region, offset beyond", "output to a region, offset beyond")),
    Row("8.", "| infer: offset+size beyond", ("input from a region, size beyond", "input from a region, no bytes")),
    Row("8.", "| output region too small |", ("output to a region, too small",)),
    Row("8.", "| cuda register |", ("CUDA register: *",)),
    Row(
        "8.",
        "[S] main: register/unregister",
        reason="the observed version has no such flag; tests/frontends/test_http_shared_memory.py has it",
    ),
    # 9 to 11. Settings, repository.
    Row("9.", "GET/POST response", ("trace settings*",)),
    Row("10.", "GET → `", ("log settings*",)),
    Row("11.", "* index: POST", ("index*", "explicit: index at the start")),
    Row("11.", "* load: body optional", ("load with a configuration", "load with a file")),
    Row("11.", "* unload: body optional", ("unload*",)),
    Row("11.", "* `<repo>` segment", ("load with a repository's name", "unload with a repository's name")),
    Row(
        "11.",
        "| model dir absent",
        (
            "load an unknown model",
            "load bad_config",
            "load with a broken configuration",
            "load with a file but no configuration",
        ),
    ),
    Row("11.", "| unknown parameter |", ("load with an unknown parameter",)),
    Row("11.", "| parameter not string |", ("load with a parameter that isn't a string",)),
    Row("11.", "| load-time failure |", ("load initialize_fails", "load no_class")),
    Row("11.", "| version policy matches nothing |", ("load no_version",)),
    Row("11.", "| mode none/poll |", ("load without explicit mode", "unload without explicit mode")),
    Row("11.", "Code names in reasons", ("index of what failed",)),
]
