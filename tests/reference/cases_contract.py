"""What models and clients were found to rely on beyond the plain requests, asked of both servers: calls from threads and tasks,
streams of ensembles, metadata and framing at the edge, loads by hand-written configs and of several versions. One list, in order.

A model's own experiments are methods in models/contract; what they tell is compared as a string. Each is asked wherever a Python
model may run: the reference has one place, and takes no notice.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from . import messages_grpc as grpc_messages
from .cases import TWICE, encode, file, index, infer, load, post, tensor
from .differences import SAME_WORDS, Difference
from .wire import Case
from .wire_grpc import Call

__all__ = ["CONTRACT", "DIFFERENCES", "EXPERIMENTS", "FLAGS", "NAMESPACED", "PLACED"]

FLAGS = ("--model-control-mode=explicit", "--load-model=*", "--grpc-header-forward-pattern=x-.*")

#: The models with experiments, and where else than by default they are to run: each has a copy there, such as lab_thread.
PLACED: Mapping[str, tuple[str, ...]] = {"lab": ("thread", "process"), "async_lab": ("loop", "thread", "process")}

EXPERIMENTS: Mapping[str, tuple[str, ...]] = {
    "lab": (
        "call_in_initialize",
        "call_from_a_pool",
        "call_from_a_thread",
        "stream_from_a_thread",
        "go_on_with_a_stream",
        "import_the_module_in_c",
        "one_module_two_names",
        "pickle_an_exception",
        "memory_that_is_free",
        "a_capsule_outlives_its_tensor",
        "call_of_an_absent_model",
        "decoupled_without_being_told",
    ),
    "async_lab": (
        "gathered",
        "streams_gathered",
        "stream_in_a_task",
        "exec_of_its_own",
        "exec_in_a_task",
        "exec_gathered",
        "exec_in_an_executor",
    ),
}

X = tensor("X", "FP32", [2], [1, 2])


def experiments() -> Iterator[Case]:
    for model, names in EXPERIMENTS.items():
        for place in ("", *PLACED[model]):
            asked = f"{model}_{place}" if place else model
            for name in names:
                yield infer(f"{asked}: {name}", asked, [tensor("WHAT", "BYTES", [1], [name])])


def streams() -> Iterator[Call]:
    """Ensembles with a decoupled step. What the reference leaves to chance isn't asked: a flag by itself before a step."""
    modes = {"the flag with the last": 1, "the flag by itself, later": 2}
    for model in ("count", "chain_only", "chain_first", "chain_last"):
        asked = dict(modes)
        if model != "chain_first":
            asked |= {"the flag by itself": 0, "an error with the flag": 3}
        for mode, number in asked.items():
            for count in (0, 1, 2):
                if count == 0 and number == 1:
                    continue
                for empty in ({}, {"triton_enable_empty_final_response": True}):
                    message = grpc_messages.request(
                        model, [grpc_messages.typed("X", "FP32", [2], [count, number])], id="r", **empty
                    )
                    name = f"{model}, {count}, {mode}{', empty final' if empty else ''}"
                    yield grpc_messages.stream(name, message)


def metadata() -> Iterator[Call]:
    message = grpc_messages.request("told", [grpc_messages.typed("X", "FP32", [2], [1, 2])])
    for name, value in {"in front": " a", "behind": "a ", "around": "  a b ", "alone": " ", "nothing": ""}.items():
        yield Call(f"gRPC: metadata, blanks {name}", "ModelInfer", (message,), metadata=(("x-a", value),))


def framing() -> Iterator[Case]:
    """A chunked request that has a length, too: the reference takes the right one, and keeps the connection."""
    body = encode({"inputs": [X]})
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    fields = (b"Transfer-Encoding: chunked", b"Content-Length: %d" % len(body))
    for name, order in (("length first", fields[::-1]), ("length last", fields)):
        head = b"\r\n".join([b"POST /v2/models/echo/infer HTTP/1.1", b"Host: reference", *order])
        yield Case(f"chunks and a length, {name}", raw=head + b"\r\n\r\n" + chunks)


# --- loads

IO = (
    '"input":[{"name":"X","data_type":"TYPE_FP32","dims":[-1]}],"output":[{"name":"Y","data_type":"TYPE_FP32","dims":[-1]}],'
    '"instance_group":[{"kind":"KIND_CPU"}]'
)
STRICT = '{"backend":"python","max_batch_size":%d,' + IO + "}"


def single(text: str) -> str:
    return text.replace('"', "'")


#: Configs as people write them; each has another batch size, or the reference would take it for the one that it has.
WRITTEN = {
    "strict": STRICT % 1,
    "trailing commas": (STRICT % 2).replace("]}]", "],},]").replace("}]}", "},],}"),
    "single quotes": single(STRICT % 3),
    "bare keys": '{backend:"python",max_batch_size:4,' + IO + "}",
    "an object for a list": (STRICT % 5).replace('[{"name"', '{"name"').replace("[-1]}]", "[-1]}"),
    "a key twice": (STRICT % 6).replace('"backend"', '"max_batch_size":1,"backend"', 1),
    "a number as text": (STRICT % 7).replace("7", '"7"', 1),
    "names in camel case": (STRICT % 8).replace("max_batch_size", "maxBatchSize").replace("data_type", "dataType"),
}

GOOD = b"""
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", r.inputs()[0].as_numpy() + %d)]) for r in requests]
"""
BAD = b"""
class TritonPythonModel:
    def initialize(self, args):
        raise ValueError("no weights today")

    def execute(self, requests):
        return []
"""


#: Where the model comes from, or what it executes with, when the class alone does not say it.
MADE = {
    "a function that makes the model": GOOD.replace(
        b"class TritonPythonModel:", b"def TritonPythonModel():\n    return M()\n\n\nclass M:"
    )
    % 7,
    "an execute that initialize sets": GOOD.replace(
        b"    def execute(self,", b"    def initialize(self, args):\n        self.execute = self.run\n\n    def run(self,"
    )
    % 8,
}


def of_all(size: int) -> str:
    return json.dumps({**json.loads(STRICT % size), "version_policy": {"all": {}}})


def loads() -> Iterator[Case]:
    for name, text in WRITTEN.items():
        yield load(f"load by a config with {name}", "echo", {"config": text})
        yield Case(f"config after a config with {name}", path="/v2/models/echo/config")
    yield load("load as it lies there", "echo")
    for name, path in {"one slash": "file:/1/model.py", "two slashes": "file://1/model.py"}.items():
        parameters = {"config": STRICT % (20 + len(name)), path: file(TWICE)}
        yield load(f"load of a file with {name}", "filed", parameters)
        yield infer(f"infer after a file with {name}", "filed", [tensor("X", "FP32", [1, 2], [1, 2])])
    for size, (what, code) in enumerate(MADE.items(), 50):
        yield load(f"load of {what}", "filed", {"config": STRICT % size, "file:/1/model.py": file(code)})
        yield infer(f"infer after {what}", "filed", [tensor("X", "FP32", [1, 2], [1, 2])])
    for name in ("...", "model..1", "..."):
        yield post(f"load of the name {name}", f"/v2/repository/models/{name}/load", {}, settle=True)
    yield load(
        "load of a good and a broken version",
        "halves",
        {"config": of_all(1), "file:1/model.py": file(GOOD % 1), "file:3/model.py": file(BAD)},
    )
    yield from halves("a good and a broken version")
    yield load(
        "load of two good versions",
        "halves",
        {"config": of_all(2), "file:1/model.py": file(GOOD % 1), "file:2/model.py": file(GOOD % 2)},
    )
    yield from halves("two good versions")
    yield load(
        "load of a good and a broken version upon two good ones",
        "halves",
        {"config": of_all(3), "file:2/model.py": file(GOOD % 20), "file:3/model.py": file(BAD)},
    )
    yield from halves("a good and a broken version upon two good ones")


def halves(behind: str) -> Iterator[Case]:
    """Ask which versions serve, and with what."""
    for version in ("1", "2", "3"):
        yield infer(f"version {version} after {behind}", "halves", [tensor("X", "FP32", [1, 2], [1, 2])], version=version)
    yield Case(f"ready after {behind}", path="/v2/models/halves/ready")


def unique(cases: Iterator[Case | Call]) -> list[Case | Call]:
    return list({case.name: case for case in cases}.values())


def every() -> Iterator[Case | Call]:
    yield from experiments()
    yield infer("execute returns something to await", "awaited", [X])
    yield from streams()
    yield from metadata()
    yield from framing()
    yield post("a stream of events of an ensemble", "/v2/models/chain_first/generate_stream", {"X": [2, 1]})
    yield from loads()
    yield index("index after all loads")


CONTRACT = unique(every())


def namespaced() -> Iterator[Case]:
    """Two repositories with a model `m` in each, one of its own, and an ensemble over `m`."""
    yield Case("namespaces: ready", path="/v2/health/ready")
    for model in ("m", "one", "two", "chain_one", "chain_two"):
        yield Case(f"namespaces: {model} is ready", path=f"/v2/models/{model}/ready")
        yield Case(f"namespaces: metadata of {model}", path=f"/v2/models/{model}")
        yield infer(f"namespaces: infer {model}", model, [X])
    yield Case("namespaces: statistics of m", path="/v2/models/m/stats")


NAMESPACED = list(namespaced())


def data(told: str) -> str:
    """Return the line that shows what an experiment told."""
    return f"outputs[0].data = {json.dumps([json.dumps(told)])}"



def step_named(model: str, step: int, count: int, empty: str) -> tuple[str, Difference]:
    difference = Difference(
        "the error of a step names it",
        lines={
            f"[{count}].error_message = \"in ensemble '{model}', boom\"": (
                f"[{count}].error_message = \"in ensemble '{model}', step {step} (model 'count'): boom\""
            )
        },
    )
    return f"gRPC stream: {model}, {count}, an error with the flag{empty}", difference


ABSENT = Difference("a model that isn't there is not found: 404, and it says which are", status=404, message=SAME_WORDS)
ELSEWHERE = Difference(
    "files of a load request lie elsewhere",
    message=r"load failed for model 'halves': version 3 is at UNAVAILABLE state: Internal: ValueError: no weights today\n\n"
    r"At:\n  /tmp/kernel-model-\w+/model/halves/3/model\.py\(4\): initialize\n;\n",
)
#: The words of a call of an absent model, as `infer` shows them: within JSON, within JSON.
CALLED = (
    "error: Model nowhere - Error when running inference: Failed for execute the inference request. Model 'nowhere' is not ready."
)
AMBIGUOUS = Difference("the models of that name are told", message=r"{reference} They are /\S+::m and /\S+::m")
DIFFERENCES: Mapping[str, Difference] = {
    **{f"namespaces: {what} m": AMBIGUOUS for what in ("metadata of", "infer")},
    **{f"load of the name {name}": ABSENT for name in ("...", "model..1")},
    "load of a good and a broken version": ELSEWHERE,
    "load of a good and a broken version upon two good ones": ELSEWHERE,
    **{
        f"{model}: call_of_an_absent_model": Difference(
            "the callee's own words come behind the reference's",
            lines={
                data(CALLED): data(f"{CALLED} Request for unknown model: 'nowhere' is not found"),
            },
        )
        for model in ("lab", *(f"lab_{place}" for place in PLACED["lab"]))
    },
    **dict(
        step_named(model, step, count, empty)
        for model, step in (("chain_only", 0), ("chain_last", 1))
        for count in (0, 1, 2)
        for empty in ("", ", empty final")
    ),
}
