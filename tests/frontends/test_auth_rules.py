"""kernel_auth's rules and its file, without a wire: buckets and accounts on a time that is told, scopes, mistakes."""

from __future__ import annotations

import hashlib
import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel import CATEGORIES, Denial, ServingError
from kernel_auth import __main__ as new_key
from kernel_auth.audit import LINES_AT_ONCE, Audit
from kernel_auth.book import parse_book
from kernel_auth.gate import credential_of
from kernel_auth.rules import Bucket, Grant, Identity, Usage
from kernel_auth.tokens import grants_of

DIGEST = "sha256:" + "0" * 64
CLIENT = f"""\
[[client]]
name = "a"  # rate = 1
keys = ["{DIGEST}"]
"""
MAY = 'may = [{ models = ["*"], categories = ["inference"] }]\n'


# --- how often


def test_bucket() -> None:
    bucket = Bucket(10.0, 2.0)
    assert [bucket.take(5.0), bucket.take(5.0)] == [0.0, 0.0]
    assert bucket.take(5.0) == pytest.approx(0.1)
    assert bucket.take(5.05) == pytest.approx(0.05)
    assert bucket.take(5.1) == 0.0
    assert [bucket.take(100.0) == 0.0 for _ in range(3)] == [True, True, False]  # no more than the burst is kept
    assert bucket.take(99.0) > 0.0 and bucket.take(100.1) == 0.0  # a clock that jumps back gives nothing


def test_bucket_gives_its_rate_in_the_long_run() -> None:
    bucket = Bucket(7.0, 3.0)
    passed = sum(bucket.take(at / 100) == 0.0 for at in range(10_001))
    assert 700 <= passed <= 703


@given(st.floats(0.01, 1e4), st.floats(1.0, 1e3), st.lists(st.floats(0.0, 10.0), max_size=50))
def test_no_more_passes_than_burst_and_rate_allow(rate: float, burst: float, steps: list[float]) -> None:
    bucket, now, passed = Bucket(rate, burst), 0.0, 0
    for step in steps:
        now += step
        wait = bucket.take(now)
        passed += wait == 0.0
        assert passed <= (burst + now * rate) * (1 + 1e-6) + 1e-6
        if wait:  # who waits as long as he was told gets one
            now += wait
            assert bucket.take(now) == 0.0
            passed += 1


def test_account_keeps_what_was_used_when_limits_change() -> None:
    usage = Usage(1.0, 5.0, 2)
    assert usage.limited and usage.most == 2
    for _ in range(5):
        assert usage.bucket.take(0.0) == 0.0
    leave = [usage.stay(), usage.stay()]
    usage.change(1.0, 5.0, 3, 0.0)
    assert usage.running == 2 and usage.most == 3 and usage.bucket.take(0.0) > 0.0
    usage.change(10.0, 20.0, 3, 1.0)  # 4 of 5 are taken then: 16 of 20 are left
    assert [usage.bucket.take(1.0) > 0.0 for _ in range(17)] == [False] * 16 + [True]
    usage.change(0.0, 1.0, 0, 1.0)
    assert not usage.limited and usage.most == float("inf") and not any(usage.bucket.take(1.0) for _ in range(100))
    leave[0]()
    assert usage.running == 1


# --- what


def test_scopes() -> None:
    grants = (Grant(("resnet*", "m?"), frozenset({"inference", "metadata"})), Grant(("*",), frozenset({"statistics"})))
    identity = Identity("a", grants, Usage(0, 1, 0))
    for _ in range(2):  # the second time it is remembered
        assert identity.may("inference", "resnet50") and identity.may("inference", "m1") and identity.may("inference", None)
        assert not identity.may("inference", "m10") and not identity.may("inference", "Resnet")
        assert not identity.may("logging", None)
        assert not identity.may("metadata", "")  # of the server: belongs to no model that was granted
        assert identity.may("statistics", "") and identity.may("statistics", "anything")
    assert not identity.may("inference", "n" * 10_000) and identity.may("inference", "resnet" + "n" * 10_000)


def test_scopes_of_tokens() -> None:
    grants = grants_of("openid kernel:inference:resnet* kernel:metadata kernel:nonsense", "kernel:")
    assert grants == (Grant(("resnet*",), frozenset({"inference"})), Grant(("*",), frozenset({"metadata"})))
    assert grants_of(["kernel:*:a", 5], "kernel:") == (Grant(("a",), frozenset(CATEGORIES)),)
    assert grants_of(None, "kernel:") == grants_of({"kernel:inference": 1}, "kernel:") == ()


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ([], b""),
        ([(b"Authorization", b"Bearer k1")], b"k1"),
        ([(b"authorization", b" bearer   k1 ")], b"k1"),
        ([(b"X-API-Key", b" k2 ")], b"k2"),
        ([(b"x-api-key", b"k2"), (b"authorization", b"Bearer k1")], b"k1"),
        ([(b"authorization", b"Basic abc"), (b"x-api-key", b"k2"), (b"x-api-key", b"k3")], b"k2"),
        ([(b"authorization", b"Bearer")], b""),
        ([(b"authorization", b"Bearer k1"), (b"authorization", b"Bearer k2")], b"k1"),
    ],
)
def test_credentials(fields: list[tuple[bytes, bytes]], key: bytes) -> None:
    assert credential_of(fields) == key


# --- the file


def test_file() -> None:
    text = f"""
    open = []
    [[client]]
    name = "a"
    keys = ["{DIGEST}"]
    rate = 2.5
    concurrency = 4
    [[client.may]]
    models = ["x", "y*"]
    categories = ["*"]
    """
    book = parse_book(text, "f")
    (client,) = book.clients
    assert book.open == frozenset() and book.tokens is None
    assert (client.name, client.digests) == ("a", ("0" * 64,))
    assert (client.limits.rate, client.limits.burst, client.limits.concurrency) == (2.5, 3.0, 4)
    assert client.grants == (Grant(("x", "y*"), frozenset(CATEGORIES)),)
    plain = parse_book(CLIENT + MAY, "f")
    assert plain.open == {"health"} and plain.clients[0].limits.rate == 0.0


SECOND = '[[client]]\nname = "b"\nkeys = ["sha256:' + "1" * 64 + '"]\n' + MAY


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x", "f:1:2: Expected '=' after a key in a key/value pair"),
        ('open = ["health"', "f:1:17: "),
        ("", "f:1:1: there is neither a [[client]] nor [jwt]: nobody could be served"),
        (CLIENT, "f:1:1: 'may' of client 'a' is missing, wanted a list of tables with models and categories"),
        (CLIENT + MAY + "rates = 5\n", "f:5:1: unknown field 'rates'; did you mean 'rate'?"),
        (CLIENT + MAY + "rate = -1\n", "f:5:1: 'rate' is -1, wanted a number, 0 for no limit"),
        (CLIENT + MAY + "rate = nan\n", "f:5:1: 'rate' is nan, wanted a number, 0 for no limit"),
        (CLIENT + MAY + "rate = true\n", "f:5:1: 'rate' is True, wanted a number, 0 for no limit"),
        (CLIENT + MAY + "  burst = 5\n", "f:5:3: there is a 'burst' without a 'rate'"),
        (CLIENT + MAY + "rate = 1\nburst = 0.5\n", "f:6:1: 'burst' is 0.5, wanted at least 1"),
        (CLIENT + MAY + "concurrency = 1.5\n", "f:5:1: 'concurrency' is 1.5, wanted an integer, 0 for any number"),
        (CLIENT + MAY.replace("inference", "infer"), "f:4:26: there is no category 'infer'; there are health, "),
        (CLIENT + MAY.replace('["*"]', '"*"'), "f:4:10: 'models' is '*', wanted a list of strings"),
        (CLIENT + MAY.replace("models", "model"), "f:4:10: unknown field 'model'; did you mean 'models'?"),
        (CLIENT.replace(DIGEST, "sha256:12"), "f:3:1: 'sha256:12' is not 'sha256:' and 64 hexadecimal digits"),
        (CLIENT + MAY + CLIENT + MAY, "f:6:1: there are two clients 'a'"),
        (CLIENT + MAY + SECOND.replace("1" * 64, "0" * 64), "f:7:1: 'b' has a key that 'a' has, too"),
        (CLIENT + MAY + SECOND.replace("name", "nam"), "f:6:1: unknown field 'nam'; did you mean 'name'?"),
        (CLIENT + MAY + SECOND.replace('"b"', "5"), "f:6:1: 'name' is 5, wanted a string"),
        ("client = 5\n", "f:1:1: 'client' is not a list of tables"),
        ('open = ["helth"]\n' + CLIENT + MAY, "f:1:1: there is no category 'helth'"),
        ('open = ["*"]\n' + CLIENT + MAY, "f:1:1: 'logging' can't be open: it changes the server"),
        ("[jwt]\njwks = 'a'\nissuer = 'i'\n", "f:1:1: 'audience' is missing, wanted a string"),
        ("[jwt]\njwks = 'http://a/'\n", "f:2:1: 'http://a/' is neither a path nor an https:// address"),
        ("[jwt]\nalgorithms = ['HS256']\n", "f:2:1: there is no algorithm 'HS256' here; there are RS256, "),
    ],
)
def test_mistakes(text: str, said: str) -> None:
    with pytest.raises(ServingError) as caught:
        parse_book(text, "f")
    assert caught.value.message.startswith(said), caught.value.message


WORDS = ["[[client]]", "[jwt]", "name", "keys", "may", "=", '"a"', f'"{DIGEST}"', "[", "]", "{", "}", ",", "\n", "#", "rate", "5"]


@given(st.text(max_size=80) | st.lists(st.sampled_from(WORDS), max_size=40).map(" ".join))
def test_any_text_is_a_file_or_a_mistake_at_its_place(text: str) -> None:
    try:
        parse_book(text, "f")
    except ServingError as error:
        assert re.match(r"f:\d+:\d+: ", error.message)


def test_a_new_key_is_one_of_the_file(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "kernel_auth", 'a"b'], capture_output=True, text=True, check=True)
    book = parse_book(done.stdout, "f")
    key = done.stdout.splitlines()[1].removeprefix("#   ")
    assert book.clients[0].name == 'a"b' and len(key) >= 43
    assert book.clients[0].digests == (hashlib.sha256(key.encode()).hexdigest(),)
    assert new_key.main([]) == new_key.main(["--help"]) == 2


# --- the audit


def test_audit(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kernel_auth")
    audit = Audit()
    audit.changed("a b", "HTTP 10.0.0.7:5", "POST /v2/repository", "m\n" + "x" * 1000)
    (line,) = caplog.messages
    wanted = 'audit result=allowed client="a b" peer="HTTP 10.0.0.7:5" operation="POST /v2/repository" model="m\\n'
    assert line.startswith(wanted)
    assert len(line) < 500
    caplog.clear()
    for _ in range(1000):
        audit.refused(0.0, Denial.UNKNOWN, "", "p", "o", "", "no")
    audit.refused(0.0, Denial.FORBIDDEN, "a", "p", "o", "m", "no")  # has lines of its own
    audit.refused(1.0, Denial.UNKNOWN, "", "p", "o", "", "no")
    assert len(caplog.messages) == LINES_AT_ONCE + 2
    assert caplog.messages[-2:] == [
        "audit result=forbidden client=a peer=p operation=o model=m why=no",
        "audit result=unknown peer=p operation=o why=no left_out=950",
    ]
