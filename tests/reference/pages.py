"""A Prometheus page taken apart, and the traffic after which two of them are compared.

Knows the text format, strictly: what a page has beyond it is an error here. `DETERMINISTIC` says of which families values are
compared.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from .cases import infer, post, tensor
from .wire import Case

__all__ = ["DETERMINISTIC", "PORT", "TRAFFIC", "Family", "parse"]

#: Of these families values are compared, of all others only what series there are.
DETERMINISTIC = re.compile(
    r"nv_inference_(request_(success|failure)|count|exec_count|pending_request_count)|nv_cache_num_(hits|misses)_per_model|"
    r"nv_pinned_memory_pool_(total|used)_bytes|nv_cpu_memory_total_bytes|my_.*"
)

_HELP = re.compile(r"# HELP (\S+) (.*)")
_TYPE = re.compile(r"# TYPE (\S+) (counter|gauge|summary|histogram)")
_SAMPLE = re.compile(r'([A-Za-z_:][A-Za-z0-9_:]*)(\{(?:[a-z_]+="(?:[^"\\\n]|\\[\\"n])*",?)*\})? (\S+)')


@dataclass
class Family:
    """One metric of a page. `samples`: name with labels as printed -> value as printed; `order` as they came."""

    help: str
    kind: str = ""
    samples: dict[str, str] = field(default_factory=dict)


def parse(page: str) -> dict[str, Family]:
    """Return the families of a page by name, in their order."""
    assert page.endswith("\n")
    families: dict[str, Family] = {}
    name = ""
    for line in page.splitlines():
        if found := _HELP.fullmatch(line):
            name = found[1]
            assert name not in families, f"{name} comes twice"
            families[name] = Family(found[2])
        elif found := _TYPE.fullmatch(line):
            assert found[1] == name
            families[name].kind = found[2]
        else:
            found = _SAMPLE.fullmatch(line)
            assert found is not None, f"no sample: {line!r}"
            assert re.fullmatch(rf"{name}(_count|_sum|_bucket)?", found[1]), line
            series = found[1] + (found[2] or "")
            assert series not in families[name].samples, f"{series} comes twice"
            families[name].samples[series] = found[3]
    return families


def x(name: str, model: str, *values: float, rows: int = 0) -> Case:
    shape = [rows, len(values) // rows] if rows else [len(values)]
    return infer(name, model, [tensor("X", "FP32", shape, list(values))])


TRAFFIC = [
    x("echo", "echo", 1, 2),
    x("echo again", "echo", 1, 2),
    x("a batch of three", "batches", 1, 2, 3, rows=3),
    x("a batch of one", "batches", 1, rows=1),
    x("too large a batch, which counts nowhere", "batches", 1, 2, 3, 4, 5, rows=5),
    x("another rank, which counts nowhere", "echo", 1, 2, rows=1),
    x("an exception", "fails", 1),
    x("an error as the answer", "tells", 1),
    post("three responses", "/v2/models/many/generate_stream", {"X": 1}),
    x("an ensemble", "chain", 1),
    x("an ensemble again", "chain", 2),
    x("an ensemble that fails in its second step", "chain_failing", 1),
    x("an answer to be kept", "kept", 1),
    x("one that was kept", "kept", 1),
    x("another answer to be kept", "kept", 2),
    x("what a model counts itself", "customs", 0.1),
    x("what it counts further", "customs", 12345678.9),
    post("a model that can't be loaded", "/v2/repository/models/broken/load"),
]

GET, POST = "GET", "POST"
#: Asked of the metrics port.
PORT = [
    Case("any other path", GET, "/"),
    Case("health, which is another port's", GET, "/v2/health/live"),
    Case("two slashes", GET, "//metrics"),
    Case("post", POST, "/metrics"),
    Case("put", "PUT", "/metrics"),
    Case("delete", "DELETE", "/anything"),
    Case("options", "OPTIONS", "/metrics"),
    Case("not HTTP", raw=b"hello\r\n\r\n"),
]
#: Answered with the page.
PAGES = [
    Case("the page", GET, "/metrics"),
    Case("with a slash", GET, "/metrics/"),
    Case("with a query", GET, "/metrics?name=x"),
    Case("with the whole address", GET, "http://reference/metrics"),
    Case("to who accepts gzip", GET, "/metrics", headers={"Accept-Encoding": "gzip"}),
    Case("to who accepts the newer format", GET, "/metrics", headers={"Accept": "application/openmetrics-text"}),
    Case("to HTTP/1.0", raw=b"GET /metrics HTTP/1.0\r\n\r\n"),
]
