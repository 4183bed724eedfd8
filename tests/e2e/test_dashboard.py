"""The live page in a real browser: states, plots that move, what is in flight, trying models, control, injections, access.

Each test waits for what is to be seen, for as long as that takes on a busy machine.
"""

from __future__ import annotations

import http.client
import json
import shutil
import struct
import subprocess
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .browser import browsing
from .serving import BROKEN, SLEEPER, Server, serving, write_model

pytest.importorskip("playwright.sync_api")

LIMIT_MS = 40_000

#: A name, an id, a text that would do something if it became markup; a folder may be called so.
MARKUP = "<img src=x onerror=window.hit=1>"
SCRIPT = "</script><script>window.hit=1</script><b>"

FAILING = f"""\
    def execute(self, requests):
        raise ValueError("no {MARKUP}{SCRIPT} today")
"""

TEXT = """\
backend: "python"
input {{ name: "X" data_type: TYPE_STRING dims: [ 1 ] }}
output {{ name: "Y" data_type: TYPE_STRING dims: [ 1 ] }}
{more}
"""

ANSWER = """\
    def execute(self, requests):
        answers = []
        for request in requests:
            value = request.inputs()[0].as_numpy()
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", {expression})]))
        return answers
"""


def text_model(repository: Path, name: str, expression: str, more: str = "") -> None:
    folder = write_model(repository, name, ANSWER.format(expression=expression))
    (folder / "config.pbtxt").write_text(TEXT.format(more=more))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with browsing() as found:
        yield found


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dashboard")
    write_model(folder, "echo", more="max_batch_size: 0")
    write_model(folder, "sleeper", SLEEPER)
    write_model(folder, "broken", BROKEN)
    write_model(folder, MARKUP)
    write_model(folder, "failing", FAILING)
    labels = 'metric_tags {{ key: "<i>label" value: "{}" }}'.format(MARKUP.replace('"', "'"))
    text_model(folder, "text", "value", labels)
    text_model(folder, "size", "np.array([str(len(value[0])).encode()], dtype=np.object_)")
    picture = write_model(folder, "picture", ANSWER.format(expression="value.reshape(3, -1).mean(axis=1).astype(np.float32)"))
    config = 'backend: "python"\ninput { name: "X" data_type: TYPE_UINT8 dims: [ 3, 4, 4 ] }\n'
    (picture / "config.pbtxt").write_text(config + 'output { name: "Y" data_type: TYPE_FP32 dims: [ 3 ] }\n')
    mistaken = write_model(folder, "mistaken")
    text = (mistaken / "config.pbtxt").read_text()
    (mistaken / "config.pbtxt").write_text(text.replace('name: "Y" data_type: TYPE_FP32', 'name: "Y" data_type: TYPE_FP23'))
    return folder


@pytest.fixture(scope="module")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server"), repository, "--exit-on-error=false") as found:
        yield found


@pytest.fixture
def page(browser: Any, server: Server) -> Iterator[Any]:
    yield from opened(browser, server)


def opened(browser: Any, server: Server, *expected: str, **options: Any) -> Iterator[Any]:
    """Yield a page that shows the server; fails where anything goes wrong in it, or it asks for something elsewhere.

    `expected`: what a line of the browser's console may have in it, besides answers that are errors.
    """
    expected = (*expected, "Failed to load resource")
    context = browser.new_context(viewport={"width": 1280, "height": 900}, **options)
    found = context.new_page()
    found.set_default_timeout(LIMIT_MS)
    wrong: list[str] = []
    found.on("pageerror", lambda error: wrong.append(str(error)))
    found.on("console", lambda line: wrong.append(line.text) if line.type == "error" else None)
    found.on("request", lambda one: None if one.url.startswith((url(server), "blob:")) else wrong.append(one.url))
    found.goto(url(server))
    found.wait_for_selector(".link.live")
    yield found
    assert found.evaluate("window.hit") is None
    context.close()
    assert not [words for words in wrong if not any(known in words for known in expected)]


def url(server: Server) -> str:
    return f"http://127.0.0.1:{server.port}/"


def shows(page: Any, selector: str, text: str) -> None:
    """Wait until the first such element has the text."""
    page.wait_for_function(
        "([selector, text]) => [...document.querySelectorAll(selector)].some((one) => one.textContent.includes(text))",
        arg=[selector, text],
    )


def row(page: Any, name: str) -> Any:
    return page.locator(".models tbody tr").filter(has=page.get_by_role("link", name=name, exact=True))


def infer(server: Server, model: str, value: object, datatype: str = "FP32", **fields: object) -> int:
    body = {"inputs": [{"name": "X", "datatype": datatype, "shape": [1], "data": [value]}], **fields}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request("POST", f"/v2/models/{model}/infer", json.dumps(body))
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


def open_model(page: Any, name: str) -> None:
    page.evaluate("(name) => { location.hash = `#/model/${encodeURIComponent(name)}`; }", name)
    page.get_by_role("heading", name=name, exact=True, level=1).wait_for()


def test_states_with_reasons(page: Any) -> None:
    row(page, "echo").locator(".chip.READY").wait_for()
    shows(page, ".models .reason", "no weights today")
    row(page, "broken").locator(".chip.FAILED").wait_for()
    shows(page, "main > .bar", "2 failed")
    page.get_by_label("Filter models").fill("ec")
    page.wait_for_function("() => document.querySelectorAll('.models tbody tr').length === 1")
    page.get_by_label("Filter models").fill("nobody is called so")
    shows(page, ".empty", "No model is called, or is, “nobody is called so”.")


def test_a_failed_load_with_the_line_of_its_config(page: Any) -> None:
    open_model(page, "mistaken")
    shows(page, ".failure", "no value 'TYPE_FP23' in DataType")
    shows(page, ".failure pre", "data_type: TYPE_FP23")
    shows(page, ".failure .mono", "config.pbtxt:3:")


def test_plots_move(page: Any, server: Server) -> None:
    page.locator(".chart").first.wait_for()

    def drawn() -> str:
        found: str = page.evaluate("document.querySelector('.chart canvas').toDataURL()")
        return found

    before = drawn()
    done = threading.Event()

    def ask() -> None:
        while not done.wait(0.05):
            infer(server, "echo", 1.0)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        label = "document.querySelectorAll('.chart canvas')[{}].getAttribute('aria-label')"
        page.wait_for_function(f"() => /answered [1-9]/.test({label.format(0)})")
        page.wait_for_function(f"() => /p50 [1-9]/.test({label.format(1)})")
        assert drawn() != before
        shows(page, ".models td.num", "/s")
    finally:
        done.set()
        asking.join()


def test_what_is_in_flight_and_what_was_slow(page: Any, server: Server) -> None:
    asking = threading.Thread(target=infer, args=(server, "sleeper", 4.0), kwargs={"id": "the slow one"})
    asking.start()
    page.get_by_role("link", name="Requests").click()
    shows(page, "td.mono", "the slow one")
    shows(page, "td.why", "it is executed, for")
    asking.join()
    infer(server, "failing", 1.0, id="the bad one")
    page.reload()
    page.locator("summary", has_text="the slow one").click()
    page.locator(".told .time i.k-execute").first.wait_for()
    shows(page, ".parts", "executed")
    shows(page, "summary", "the bad one")


def test_config_says_where_each_value_is_from(page: Any) -> None:
    open_model(page, "picture")
    line = page.locator("tr").filter(has=page.get_by_role("cell", name="input[0].dims", exact=True))
    line.locator(".chip.file", has_text="line 2").wait_for()
    page.locator("tr").filter(has_text="instance_group[0].count").locator(".chip.default").wait_for()
    page.get_by_role("button", name="empty defaults").click()
    page.get_by_role("cell", name="platform", exact=True).wait_for()


def test_try_numbers_and_the_same_as_code(page: Any) -> None:
    open_model(page, "echo")
    page.get_by_label("X shape").fill("3")
    page.get_by_label("Values of X").fill("[1, 2.5, 7]")
    page.get_by_role("button", name="Send").click()
    shows(page, ".output pre", "1  2.5  7")
    shows(page, "pre", '"data":[1,2.5,7]')
    assert page.evaluate("[...document.querySelectorAll('pre.code')].every((one) => one.scrollWidth <= one.clientWidth)")
    page.get_by_role("tab", name="Python").click()
    shows(page, "pre", "x0.set_data_from_numpy(np.array([1, 2.5, 7], dtype=np.float32).reshape(3,))")
    page.get_by_label("Values of X").fill("1 two 3")
    shows(page, ".bad", "X: “two” came, wanted is a number")
    page.get_by_label("Values of X").fill("1 2")
    shows(page, ".bad", "X: there are 2 values, and the shape [3] wants 3")


def test_the_code_does_what_the_form_does(page: Any) -> None:
    """The curl command, run by a shell."""
    if shutil.which("curl") is None:
        pytest.skip("there is no curl")
    open_model(page, "text")
    page.get_by_label("Values of X").fill("it's \"quoted\" $HOME `x`")
    shows(page, "pre", "$HOME")
    command = page.locator("pre[role=tabpanel]").first.text_content()
    answer = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60)
    assert json.loads(answer.stdout)["outputs"][0]["data"] == ["it's \"quoted\" $HOME `x`"]


def test_try_text(page: Any) -> None:
    open_model(page, "text")
    page.get_by_label("Values of X").fill("grüße 🙂")
    page.get_by_role("button", name="Send").click()
    shows(page, ".output pre", '"grüße 🙂"')


def test_try_a_file(page: Any) -> None:
    open_model(page, "size")
    page.get_by_label("X as").select_option("file")
    page.get_by_label("File for X").set_input_files({"name": "x.bin", "mimeType": "", "buffer": bytes(1234)})
    page.get_by_role("button", name="Send").click()
    shows(page, ".output pre", '"1234"')
    shows(page, "pre", "--data-binary @request.bin")


def test_try_a_picture(page: Any) -> None:
    open_model(page, "picture")
    page.get_by_label("X as").select_option("image")
    page.get_by_label("File for X").set_input_files({"name": "x.png", "mimeType": "image/png", "buffer": SQUARE})
    page.locator("img.preview").wait_for()
    page.get_by_role("button", name="Send").click()
    shows(page, ".output pre", "200  100  50")


def png(width: int, height: int, colour: tuple[int, int, int]) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    lines = (b"\0" + bytes(colour) * width) * height
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")


SQUARE = png(8, 8, (200, 100, 50))


def test_nothing_that_is_told_becomes_markup(page: Any, server: Server) -> None:
    """The name of a model, a label, the text of a tensor, an error, the id of a request."""
    row(page, MARKUP).wait_for()
    open_model(page, MARKUP)
    page.get_by_role("button", name="Send").click()
    shows(page, "p.bad", "unknown model")  # paths are not decoded, so no client can call it over HTTP
    open_model(page, "text")
    shows(page, "td.mono", "<i>label")
    shows(page, "td.mono", MARKUP)
    page.get_by_label("Values of X").fill(MARKUP + SCRIPT)
    page.get_by_role("button", name="Send").click()
    shows(page, ".output pre", MARKUP + SCRIPT)
    infer(server, "failing", 1.0, id=MARKUP + SCRIPT)
    page.evaluate("location.hash = '#/requests'")
    shows(page, "summary code", MARKUP + SCRIPT)
    shows(page, "summary .words", f"no {MARKUP}{SCRIPT} today")
    assert page.locator("main img, main script, [onerror]").count() == 0


def test_text_can_become_no_markup_even_where_a_script_would_have_it(browser: Any, server: Server) -> None:
    pages = opened(browser, server, "requires 'TrustedHTML'", "requires TrustedHTML", "TrustedHTML")
    page = next(pages)
    injected = f"document.body.insertAdjacentHTML('beforeend', '{MARKUP}')"
    tried = f"() => {{ try {{ {injected}; return 'done'; }} catch (error) {{ return error.name; }} }}"
    assert page.evaluate(tried) == "TypeError"
    next(pages, None)


def test_without_control_there_is_none(page: Any, server: Server) -> None:
    open_model(page, "echo")
    page.get_by_role("heading", name="Config").wait_for()
    assert page.get_by_role("button", name="Unload").count() == 0
    answer = page.evaluate("fetch('v2/repository/models/echo/unload', {method: 'POST'}).then((one) => one.status)")
    assert answer == 403
    assert server.request("POST", "/v2/logging", {"log_verbose_level": 0}, Origin="http://evil.example")[0] == 403
    assert server.request("POST", "/v2/logging", {"log_verbose_level": 0})[0] == 200
    assert server.request("GET", "/", Host="evil.example")[0] == 403


def test_with_control(browser: Any, repository: Path, tmp_path: Path) -> None:
    flags = ("--model-control-mode=explicit", "--load-model=echo", "--dashboard-control=true")
    with serving(tmp_path, repository, *flags) as server:
        pages = opened(browser, server)
        page = next(pages)
        open_model(page, "echo")
        page.get_by_role("button", name="Unload").click()
        shows(page, "h1 + .row .chip", "unloaded")
        page.get_by_role("button", name="Load or reload").click()
        page.locator("h1 + .row .chip.READY").wait_for()
        shows(page, ".bar [role=status]", "It is loaded.")
        assert server.request("POST", "/v2/repository/models/echo/unload", {}, Origin="http://evil.example")[0] == 403
        next(pages, None)


def test_several_replicas_are_shown_as_sums(browser: Any, repository: Path, tmp_path: Path) -> None:
    with serving(tmp_path, repository, "--exit-on-error=false", "--replicas=2") as server:
        pages = opened(browser, server)
        page = next(pages)
        shows(page, "#about", "sums of replicas 0, 1")
        assert [infer(server, "echo", 1.0) for _ in range(5)] == [200] * 5
        open_model(page, "echo")
        shows(page, "dt + dd", "5")
        shows(page, "code", "of replica 0")
        shows(page, "code", "of replica 1")
        next(pages, None)


def test_a_page_that_wants_a_key(browser: Any, repository: Path, tmp_path: Path) -> None:
    restricted = "--http-restricted-api=statistics,model-config:admin-key=secret"
    with serving(tmp_path, repository, "--exit-on-error=false", restricted) as server:
        context = browser.new_context()
        page = context.new_page()
        page.set_default_timeout(LIMIT_MS)
        page.goto(url(server))
        page.get_by_label("Key").fill("secret")
        page.get_by_role("button", name="Use this key").click()
        page.wait_for_selector(".link.live")
        row(page, "echo").wait_for()
        context.close()


def test_a_server_that_stops_does_not_wait_for_who_looks(browser: Any, repository: Path, tmp_path: Path) -> None:
    with serving(tmp_path, repository, "--exit-on-error=false", "--exit-timeout-secs=30") as server:
        context = browser.new_context()
        page = context.new_page()
        page.set_default_timeout(LIMIT_MS)
        page.goto(url(server))
        page.wait_for_selector(".link.live")
        server.signal()
        page.wait_for_selector(".link.lost")
        assert server.wait() == 0
        assert "Exit timeout expired" not in server.text()
        context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_everybody_can_use_it(browser: Any, server: Server, theme: str) -> None:
    """No violation that axe finds, on each view; nothing that runs over the edge of a telephone."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    infer(server, "failing", 1.0, id="one that failed")
    pages = opened(browser, server, color_scheme=theme)
    page = next(pages)
    row(page, "echo").wait_for()
    for view in ("#/", "#/requests", "#/graph", "#/model/echo", "#/model/mistaken", "#/model/picture"):
        page.evaluate("(view) => { location.hash = view; }", view)
        page.wait_for_timeout(700)
        if view == "#/requests":
            page.locator("summary").first.click()
        found = axe.run(page).response["violations"]
        assert not [(one["id"], [node["target"] for node in one["nodes"]]) for one in found], view
    page.set_viewport_size({"width": 390, "height": 800})
    for view in ("#/", "#/requests", "#/graph", "#/model/echo", "#/model/mistaken"):
        page.evaluate("(view) => { location.hash = view; }", view)
        page.wait_for_timeout(300)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view
    next(pages, None)


def test_the_keyboard_is_enough(page: Any) -> None:
    row(page, "echo").wait_for()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    reached = []
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.textContent || document.activeElement.getAttribute('aria-label')"))
        if reached[-1] == "echo":
            break
    assert {"Models", "Requests", "Calls", "Filter models by name or state"} <= set(reached) and reached[-1] == "echo"
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="echo", exact=True, level=1).wait_for()
    assert page.evaluate("document.activeElement.id") == "main"
