"""The API described: the document is valid and says of each model what it takes; the page fetches and runs nothing."""

from __future__ import annotations

import html.parser
import re
from typing import Any

import jsonschema
import pytest
from frontends.fakes import Client, Config, FakeKernel, Spec, config, infer, parse, request, tensor
from openapi_spec_validator import validate

from kernel_http.connection.routes import ROUTES
from kernel_http.operations.openapi import facts_of
from kernel_http.operations.schemas import ROWS, ModelFacts, TensorFacts, base_document, key_of, model_parts


@pytest.fixture
def client() -> Client:
    return Client()


def document(client: Client) -> Any:
    response = client.ask(request("GET", "/openapi.json"))
    assert (response.status, response.headers["Content-Type"]) == (200, "application/json")
    return response.json


def test_the_document_is_valid(client: Client) -> None:
    client.kernel.add(config("große Äpfel", [Spec("ä", "BF16", (2, -1))], [Spec("y", "INT8", ())]))
    said = document(client)
    validate(said)
    assert said["openapi"] == "3.1.0" and said["info"]["title"] == "triton"
    assert "security" not in said


def test_every_route_is_in_it_by_its_methods(client: Client) -> None:
    rows = {(route, method) for route, method, *_ in ROWS}
    assert rows == {(route.name, method.lower()) for route in ROUTES for method in route.methods.split()}
    by_name: dict[str, list[str]] = {}
    for route in ROUTES:
        by_name.setdefault(route.name, []).append(route.pattern)
    values = {"model": "m", "version": "1", "region": "r", "id": "x", "count": "3"}
    for name, _, path, *_ in ROWS:
        assert any(re.fullmatch(pattern, path.format(**values)) for pattern in by_name[name]), path
    assert {path for _, _, path, *_ in ROWS} <= document(client)["paths"].keys()


def test_a_model_has_paths_and_schemas_of_its_own(client: Client) -> None:
    said = document(client)
    schemas = said["components"]["schemas"]
    asked = said["paths"]["/v2/models/batch8/infer"]["post"]
    assert asked["requestBody"]["content"]["application/json"]["schema"] == {
        "$ref": "#/components/schemas/model.batch8.InferRequest"
    }
    (x,) = schemas["model.batch8.InferRequest"]["properties"]["inputs"]["items"]["anyOf"]
    assert (x["description"], x["properties"]["name"]) == ("FP32 [-1, 2]", {"const": "X"})
    assert x["properties"]["shape"]["prefixItems"][1] == {"const": 2}
    assert schemas["model.multi.InferRequest"]["description"] == "Versions 1, 3; python"
    assert schemas["model.add_sub.InferRequest"]["properties"]["inputs"]["minItems"] == 2
    assert "/v2/models/gen/generate_stream" in said["paths"] and "/v2/models/gen/infer" not in said["paths"]
    kinds = schemas["model.types.InferRequest"]["properties"]["inputs"]["items"]["anyOf"]
    assert [kind["properties"]["name"]["const"] for kind in kinds if "data" not in kind["properties"]] == ["IN_FP16"]
    assert schemas["Data.UINT8"]["items"]["anyOf"][0] == {"type": "integer", "minimum": 0, "maximum": 255}


def test_requests_and_answers_are_as_their_schemas_say(client: Client) -> None:
    said = document(client)

    def valid(value: Any, schema: str) -> bool:
        whole = {"$ref": f"#/components/schemas/{schema}", "components": said["components"]}
        return bool(jsonschema.Draft202012Validator(whole).is_valid(value))

    good = {"inputs": [tensor("INPUT0", "FP32", [4], [1, 2, 3, 4]), tensor("INPUT1", "FP32", [4], [[1, 1], [1, 1]])]}
    assert valid(good, "model.add_sub.InferRequest") and valid(good, "InferRequest")
    answer = client.ask(infer("add_sub", good)).json
    assert valid(answer, "model.add_sub.InferResponse") and not valid(answer, "model.batch8.InferResponse")
    for wrong in (
        {},
        {"inputs": []},
        {"inputs": [tensor("INPUT0", "FP32", [4], [1, 2, 3, 4])] * 3},
        {"inputs": [tensor("INPUT0", "FP32", [3], [1, 2, 3]), good["inputs"][1]]},
        {"inputs": [tensor("INPUT0", "INT32", [4], [1, 2, 3, 4]), good["inputs"][1]]},
        {"inputs": [tensor("INPUT2", "FP32", [4], [1, 2, 3, 4]), good["inputs"][1]]},
        {"inputs": [tensor("INPUT0", "FP32", [4], ["1"]), good["inputs"][1]]},
        good | {"outputs": [{"name": "OUTPUT7"}]},
    ):
        assert not valid(wrong, "model.add_sub.InferRequest"), wrong
    for path, schema in (("/v2", "ServerMetadata"), ("/v2/models/batch8", "ModelMetadata"), ("/v2/models/stats", "Statistics")):
        assert valid(client.ask(request("GET", path)).json, schema), path
    assert valid(client.ask(request("POST", "/v2/repository/index")).json, "RepositoryIndex")
    assert valid(client.ask(request("GET", "/v2/models/nope")).json, "Error")


def test_it_is_made_once_for_each_set_of_models(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def counted(facts: ModelFacts) -> Any:
        made.append(facts.name)
        return model_parts(facts)

    monkeypatch.setattr("kernel_http.operations.openapi.model_parts", counted)
    first = document(client)
    assert sorted(made) == sorted(client.kernel.served)
    for path in ("/docs", "/openapi.json", "/docs"):
        client.send(request("GET", path))
        assert not client.kernel.loop.jobs  # nothing is made for it
        assert parse(client.take())[0].status == 200
    made.clear()
    client.kernel.add(config("new", [], []))
    assert document(client)["components"]["schemas"].keys() > first["components"]["schemas"].keys()
    assert made == ["new"]  # the others have their parts already
    client.kernel.add(client.kernel.model("new").config, 2)
    assert document(client)["components"]["schemas"]["model.new.InferRequest"]["description"].startswith("Versions 1, 2")
    del client.kernel.served["new"]
    assert document(client) == first


def test_who_comes_while_it_is_made_waits_with_the_others(client: Client) -> None:
    loop = client.kernel.loop
    client.send(request("GET", "/openapi.json") * 3)
    other = Client(client.kernel, server=client.server)
    other.send(request("GET", "/docs"))
    assert len(loop.jobs) == 1 and client.take() == other.take() == b""
    client.kernel.add(config("late", [], []))
    late = Client(client.kernel, server=client.server)
    late.send(request("GET", "/openapi.json"))
    loop.run_jobs()  # the first is of before the load, and answers who came before it
    first = parse(client.take())
    assert len(first) == 3 and "/v2/models/late/infer" not in first[0].json["paths"] and late.take() == b""
    loop.run_jobs()
    assert "/v2/models/late/infer" in parse(late.take())[0].json["paths"]
    assert not loop.jobs
    gone = Client(client.kernel, server=client.server)
    client.kernel.add(config("later", [], []))
    gone.send(request("GET", "/openapi.json"))
    gone.connection.connection_lost(None)
    loop.run_jobs()
    assert not loop.jobs and "/v2/models/later/infer" in document(client)["paths"]


def test_one_that_cannot_be_made_is_a_500_and_the_next_is_tried_anew(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernel_http.operations.openapi.page", lambda *given: 1 // 0)
    response = client.ask(request("GET", "/openapi.json"))
    assert (response.status, response.error) == (500, "ZeroDivisionError: integer division or modulo by zero")
    monkeypatch.undo()
    assert document(client)["paths"]


def test_keys_are_told_of_where_there_is_a_gate() -> None:
    said = base_document("s", "1", keys=True)
    validate(said)
    assert said["security"] == [{"key": []}]


def test_names_that_no_path_has_and_names_that_are_near() -> None:
    facts = ModelFacts("a/b {x}", (1,), "python", (TensorFacts("X", "FP32", (1,)),), (), False)
    paths, schemas = model_parts(facts)
    assert paths == {} and all(re.fullmatch(r"[A-Za-z0-9._-]+", key) for key in schemas)
    assert len({key_of(name) for name in ("a b", "a_b", "a/b", "a\udcffb")}) == 4
    odd = facts_of("a\udcff", (1,), config("a\udcff", [Spec("\udcff", "FP32", (1,))], []))  # type: ignore[arg-type]
    assert odd.name == "a\\udcff" and odd.inputs[0].name == "\\udcff"


# --- the page


class Page(html.parser.HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.ids: list[str | None] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_data(self, data: str) -> None:
        self.text += data


HOSTILE = "<script>alert(1)</script>\"'&"


def test_the_page_runs_and_fetches_nothing_whatever_models_are_called(client: Client) -> None:
    made: Config = config(HOSTILE, [Spec(HOSTILE, "FP32", (4,))], [Spec(HOSTILE, HOSTILE, (1,))])
    client.kernel.add(made)
    response = client.ask(request("GET", "/docs"))
    assert (response.status, response.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    policy = response.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "script" not in policy and "unsafe" not in policy and "http" not in policy
    page = Page(response.body.decode())
    assert page.tags.isdisjoint({"script", "img", "iframe", "link", "object", "form"})
    assert page.text.count("<script>alert(1)</script>") >= 4
    for name, value in page.attributes:
        assert not name.startswith("on") and name not in ("src", "style"), (name, value)
        assert name != "href" or value == "openapi.json" or (value or "").startswith("#"), value
    assert len(page.ids) == len(set(page.ids))
    assert {value[1:] for name, value in page.attributes if name == "href" and value and value[0] == "#"} == set(page.ids)


def test_its_examples_are_requests_that_models_answer(client: Client) -> None:
    page = Page(client.ask(request("GET", "/docs")).body.decode())
    found = re.findall(r"curl 'http://localhost:8000(/v2/\S+)' -d '(.*)'", page.text)
    assert {path.split("/")[3] for path, _ in found} == {"add_sub", "batch8", "multi", "gen", "text", "types"}
    for path, body in found:
        if not path.startswith("/v2/models/gen"):
            response = client.ask(request("POST", path, body.encode()))
            assert response.status == 200 or "types" in path, (path, body, response)


def test_a_kernel_without_models(client: Client) -> None:
    client.kernel.served.clear()
    validate(document(client))
    assert "None is loaded." in client.ask(request("GET", "/docs")).body.decode()


def test_both_are_restricted_as_metadata_are() -> None:
    client = Client(FakeKernel(), restrictions={"metadata": ("key", "secret")})
    for path in ("/openapi.json", "/docs"):
        assert client.ask(request("GET", path)).status == 403
        assert client.ask(request("GET", path, b"", "key: secret")).status == 200
