"""`--cache-config` and its older form: which cache is asked for, and what is refused."""

from __future__ import annotations

import pytest

from kernel import Code, Kernel, LocalCache, ServingError
from kernel.cli.cache_config import add_cache_flags, cache_options
from kernel.cli.parser import Parser


def read(*arguments: str) -> tuple[str, dict[str, str]] | None:
    parser = Parser("kernel serve", "REPO", "")
    add_cache_flags(parser)
    return cache_options(parser.read(arguments))


def test_settings() -> None:
    assert read() is None
    assert read("--cache-config=local,size=100") == ("local", {"size": "100"})
    several = read("--cache-config", "redis,host=h:1", "--cache-config", "redis,db=a=b,c")
    assert several == ("redis", {"host": "h:1", "db": "a=b,c"})
    assert read("--cache-config=local,size=1", "--cache-config=local,size=2") == ("local", {"size": "2"}), "the last one counts"
    assert read() is None, "nothing is left of what was read before"


def test_the_older_form(capsys: pytest.CaptureFixture[str]) -> None:
    assert read("--response-cache-byte-size=100") == ("local", {"size": "100"})
    words = "Warning: '--response-cache-byte-size' has been deprecated, use '--cache-config=local,size=100'\n"
    assert capsys.readouterr().err == words
    assert read("--response-cache-byte-size", "0") is None


NO_CACHE = (
    "No cache specified. --cache-config option format is <cache name>,<setting>=<value>. Got {0} — "
    "--cache-config '{0}' is not of the form <cache name>,<setting>=<value>"
)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cache-config=local"], NO_CACHE.format("local")),
        (["--cache-config=local,size"], NO_CACHE.format("local,size")),
        (["--cache-config=,size=3"], NO_CACHE.format(",size=3")),
        (["--cache-config=local,=3"], NO_CACHE.format("local,=3")),
        (["--response-cache-byte-size=1k"], "--response-cache-byte-size '1k' is no number of bytes"),
        (
            ["--cache-config=local,size=1", "--response-cache-byte-size=1"],
            "Incompatible flags --response-cache-byte-size and --cache-config both provided. Please provide one or the other.",
        ),
    ],
)
def test_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read(*arguments)
    assert f"Error: {message}\n" in capsys.readouterr().err


def test_two_caches() -> None:
    with pytest.raises(ServingError) as raised:
        read("--cache-config=local,size=1", "--cache-config=redis,host=h")
    assert raised.value.code is Code.INVALID_ARG
    assert raised.value.message == (
        "found multiple cache configurations, but only a single cache is currently supported: ['local', 'redis']"
    )


def test_who_makes_it() -> None:
    made = Kernel("/nowhere", cache=("local", {"size": "100"}))
    assert made.cache is not None and made.cache.figures().usage.size == 100
    assert Kernel("/nowhere", cache=LocalCache(7)).cache is not None
    assert Kernel("/nowhere").cache is None
    with pytest.raises(ServingError) as raised:
        Kernel("/nowhere", cache=("redis", {}))
    assert raised.value.message == (
        "unable to find a response cache 'redis': no installed plugin makes it, only 'local' is built in"
    )
