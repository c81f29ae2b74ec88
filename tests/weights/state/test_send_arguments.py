"""Invalid arguments of callers: named errors before anything is written."""

from __future__ import annotations

import math
from typing import Any

import pytest

from rlinf_async import MultiProcessWeightSyncScheme
from rlinf_async.errors import ConfigError
from rlinf_async.weights.state.versions import VersionLedger
from rlinf_async.weights.waiting.execution import check_seconds
from tests.weights.ends import SCHEMES, Tied, both

every_scheme = pytest.mark.parametrize("kind", SCHEMES)

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"version": 2.5}, r"version= takes a whole number; got 2\.5"),
    ({"version": True}, "version= takes a whole number; got True"),
    ({"version": "3"}, "version= takes a whole number; got '3'"),
    ({"version": 1 << 63}, "version= is at least 0 and at most"),
    ({"version": -1}, "version= is at least 0"),
    ({"timeout": -1.0}, r"timeout= takes seconds, at least 0; got -1\.0"),
    ({"timeout": math.nan}, "timeout= takes seconds, at least 0; got nan"),
    ({"timeout": "5"}, "timeout= takes seconds, or None; got '5'"),
]


@pytest.mark.parametrize(("options", "text"), WRONG)
@every_scheme
async def test_what_is_said_wrongly_is_named_by_the_call_and_the_next_send_arrives(
    kind: str, options: dict[str, Any], text: str
) -> None:
    source = Tied(1.0)
    async with both(kind, source=source) as ends:
        for send in (ends.sender.send, ends.sender.send_async):
            with pytest.raises((TypeError, ValueError), match=text):
                send(**options)
        assert (ends.sender.version, ends.sees) == (0, {0.0})
        assert (await ends.deliver(version=4)).version == 4
        assert ends.sees == {1.0}


def test_a_timeout_may_be_zero() -> None:
    check_seconds(0)


@pytest.mark.parametrize("version", [2.5, True, 1 << 63])
def test_a_ledger_takes_no_number_that_cannot_travel(version: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="version="):
        VersionLedger().check(version)


@pytest.mark.parametrize("seconds", [None, math.nan, 0.0, -1.0, "5"])
def test_an_ack_timeout_that_is_no_number_of_seconds_is_named(seconds: Any) -> None:
    with pytest.raises(ConfigError, match="ack_timeout= takes seconds, more than 0"):
        MultiProcessWeightSyncScheme(ack_timeout=seconds)
