"""The document of schemas.py as a page for people: one file of HTML, no script, nothing from elsewhere. All texts are escaped."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any
from urllib.parse import quote

from kernel_http.operations.schemas import BINARY_ONLY, ModelFacts, TensorFacts, described, in_path

__all__ = ["SECURITY", "page"]

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 60rem; padding: 1rem; }
h1, h2, h3 { line-height: 1.2; } h2 { border-bottom: 1px solid var(--line); margin-top: 2.5rem; }
table { border-collapse: collapse; width: 100%; } td, th { border-bottom: 1px solid var(--line); padding: .3rem .6rem .3rem 0; }
td, th { text-align: left; vertical-align: top; } code, pre { font: 13px/1.45 ui-monospace, monospace; }
pre { background: var(--soft); border-radius: 4px; overflow-x: auto; padding: .7rem; } .wide { overflow-x: auto; }
nav ul { columns: 14rem; padding-left: 1.2rem; } a:focus-visible, summary:focus-visible { outline: 2px solid; }
"""

#: The header lines of the page: the browser is to run and to fetch nothing. The style is known by its hash.
_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
SECURITY = (
    f"Content-Security-Policy: default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'\r\n"
    "X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n"
).encode()


def page(document: dict[str, Any], models: Sequence[ModelFacts]) -> str:
    """Return the page of a document without models, and of these models."""
    return "\n".join(_page(document, models))


def _page(document: dict[str, Any], models: Sequence[ModelFacts]) -> Iterator[str]:
    info = document["info"]
    title = escape(f"{info['title']}: API")
    yield '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{title}</title><style>{STYLE}</style></head><body>"
    yield f"<header><h1>{title}</h1><p>Version {escape(info['version'])}. {escape(info['description'])}</p>"
    yield '<p>For programs: <a href="openapi.json">openapi.json</a> (OpenAPI 3.1).</p></header>'
    yield '<nav aria-label="Models"><h2>Models</h2>'
    if models:
        items = "".join(f'<li><a href="#{_anchor(model)}">{escape(model.name)}</a></li>' for model in models)
        yield f"<ul>{items}</ul></nav>"
    else:
        yield "<p>None is loaded.</p></nav>"
    yield "<main>"
    for model in models:
        yield from _model(model)
    yield "<section><h2>All routes</h2>"
    for tag in document["tags"]:
        yield from _routes(document, tag["name"])
    yield "</section></main></body></html>"


def _anchor(model: ModelFacts) -> str:
    return escape(f"model-{quote(model.name, safe='')}")


def _model(model: ModelFacts) -> Iterator[str]:
    yield f'<section id="{_anchor(model)}"><h3>{escape(model.name)}</h3>'
    kind = ", any number of responses to a request" if model.decoupled else ""
    yield f"<p>Versions {escape(', '.join(map(str, model.versions)))}; {escape(model.platform)}{kind}</p>"
    yield '<div class="wide"><table><thead><tr><th>tensor</th><th>name</th><th>datatype and shape</th><th></th></tr></thead>'
    yield "<tbody>"
    for word, tensors in (("input", model.inputs), ("output", model.outputs)):
        for tensor in tensors:
            note = "optional" if tensor.optional else ""
            yield f"<tr><td>{word}</td><td><code>{escape(tensor.name)}</code></td>"
            yield f"<td><code>{escape(described(tensor))}</code></td><td>{note}</td></tr>"
    yield "</tbody></table></div>"
    if not in_path(model.name):
        yield "<p>Its name can't stand in a path: ask it by gRPC.</p>"
    elif any(tensor.datatype in BINARY_ONLY and not tensor.optional for tensor in model.inputs):
        yield "<p>An input has a datatype that JSON can't carry: send its data as binary data.</p>"
    else:
        yield f"<details><summary>As curl</summary><pre>{escape(curl(model))}</pre></details>"
    yield "</section>"


def curl(model: ModelFacts) -> str:
    """Return a command that asks the model, with an example of each input that it needs."""
    inputs = [tensor for tensor in model.inputs if not tensor.optional]
    if model.decoupled:
        body: dict[str, Any] = {tensor.name: _value(tensor) for tensor in inputs}
        route = "generate_stream"
    else:
        body = {"inputs": [_example(tensor) for tensor in inputs]}
        route = "infer"
    text = json.dumps(body, ensure_ascii=False).replace("'", "'\\''")
    path = model.name.replace("'", "'\\''")
    return f"curl 'http://localhost:8000/v2/models/{path}/{route}' -d '{text}'"


#: How many values an example shows at most; of larger tensors it says how many are wanted.
SHOWN = 64


def _example(tensor: TensorFacts) -> dict[str, Any]:
    shape = [1 if size < 0 else size for size in tensor.shape]
    count = math.prod(shape)
    data = [_value(tensor)] * count if count <= SHOWN else [f"… {count} values"]
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": shape, "data": data}


def _value(tensor: TensorFacts) -> Any:
    return {"BYTES": "text", "BOOL": True}.get(tensor.datatype, 1.5 if tensor.datatype.startswith("FP") else 1)


def _routes(document: dict[str, Any], tag: str) -> Iterator[str]:
    yield f'<h3>{escape(tag)}</h3><div class="wide"><table><tbody>'
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if tag in operation["tags"]:
                yield f"<tr><td><code>{method.upper()}</code></td><td><code>{escape(path)}</code></td>"
                yield f"<td>{escape(operation['summary'])}</td></tr>"
    yield "</tbody></table></div>"
