"""The values of the flags that restrict APIs."""

from __future__ import annotations

import pytest

from kernel import parse_restrictions
from kernel.frontends.restriction import CATEGORIES

FLAG = "--http-restricted-api"


def test_categories_share_or_have_their_keys() -> None:
    assert parse_restrictions([], FLAG) == {}
    assert parse_restrictions(["health, metadata:admin-key=secret", "inference:k=a=b:c,d "], FLAG) == {
        "health": ("admin-key", "secret"),
        "metadata": ("admin-key", "secret"),
        "inference": ("k", "a=b:c,d "),
    }
    assert parse_restrictions([f"{','.join(CATEGORIES)}:k=v"], FLAG) == dict.fromkeys(CATEGORIES, ("k", "v"))


@pytest.mark.parametrize("value", ["", "health", "health:", "health:key", "health:key=", "health:=value", "key=value", ":k=v:"])
def test_values_of_another_form(value: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_restrictions([value], FLAG)
    assert str(caught.value) in (
        f"{FLAG} option format is '<config name>:<setting>=<value>'. Got {value} — "
        f"{FLAG} '{value}' is not of the form <category>[,<category>...]:<key>=<value>",
        f"unknown restricted api '' — {FLAG} '{value}': there is no category ''; there are {', '.join(CATEGORIES)}",
    )


def test_unknown_categories_and_doubled_ones() -> None:
    words = r"^unknown restricted api 'x' — --http-restricted-api 'health,x:k=v': there is no category 'x'; there are health, "
    with pytest.raises(ValueError, match=words):
        parse_restrictions(["health,x:k=v"], FLAG)
    with pytest.raises(ValueError, match=r"^restricted api 'health' can not be specified in multiple config groups — "):
        parse_restrictions(["health:a=b", "trace,health:b=c"], FLAG)
    with pytest.raises(ValueError, match=r" — --http-restricted-api 'trace,health:b=c': the category 'health' was given before$"):
        parse_restrictions(["health:a=b", "trace,health:b=c"], FLAG)
    with pytest.raises(ValueError, match=r"^unknown restricted protocol 'x' — --grpc-restricted-protocol 'x:k=v': there is no"):
        parse_restrictions(["x:k=v"], "--grpc-restricted-protocol")
    with pytest.raises(ValueError, match=r"^restricted protocol 'trace' can not be specified in multiple config groups"):
        parse_restrictions(["trace,trace:k=v"], "--grpc-restricted-protocol")
    with pytest.raises(ValueError, match="'a b' can't be the name of a header"):
        parse_restrictions(["health:a b=c"], FLAG)
