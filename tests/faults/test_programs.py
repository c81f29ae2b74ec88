"""Programs that broke a promise once, as short as they came to be."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.stage import Stage
from tests.faults.steps import (
    Call,
    Close,
    Exec,
    Get,
    Kill,
    KillDaemon,
    Open,
    Pause,
    Program,
    Put,
    Send,
    Settle,
    Sever,
    Starve,
)

pytestmark = pytest.mark.shared_cluster

LARGE = 200 * 1024

LOST_MESSAGES: dict[str, Program] = {
    "a receiver without descriptors": (
        Send("a", LARGE, 3), Settle(), Starve("b", 0.2), Settle(), Send("a", LARGE, 3), Pause(0.2), Send("a", 100, 3),
    ),
    "a socket that a process without descriptors is given": (Send("a", LARGE, 1), Starve("b", 0.15), Pause(0.2)),
    "such a socket between workers that have not spoken": (Send("a", 100), Starve("a", 0.05), Pause(0.1)),
    "garbage on a socket": (
        Send("a", LARGE, 3), Settle(), Sever("b", "garbage"), Send("a", LARGE, 10), Send("a", 100, 3),
    ),
    "a socket that is shut down": (
        Send("a", 100, 3), Settle(), Send("a", LARGE, 10), Sever("b", "shutdown"), Send("a", LARGE, 10),
    ),
    "a socket that is closed under its owner": (
        Send("a", 100, 3), Settle(), Send("a", LARGE, 10), Sever("a", "close"), Send("a", LARGE, 10),
    ),
}  # fmt: skip

HUNG_CALLS: dict[str, Program] = {
    "a worker without descriptors": (
        Call("b", "def", LARGE), Settle(), Starve("b", 0.2), Settle(), Call("b", "def", LARGE, 3),
        Call("b", "def", 100),
    ),
    "a socket that is shut down": (
        Call("b", "def", 100), Settle(), Call("b", "async", 100, 3), Sever("b", "shutdown"), Call("b", "async", 100, 3),
    ),
    "garbage on a socket and on the one that follows it": (
        Call("b", "def", 100), Settle(), *((Sever("b", "garbage"), Settle()) * 5),
    ),
    "garbage from the other worker": (
        Call("a", "peer", 100), Settle(), Call("a", "peer", LARGE, 3), Sever("b", "garbage"),
        Call("a", "peer", LARGE, 3),
    ),
}  # fmt: skip

DEATHS: dict[str, Program] = {
    "of the daemon": (Call("a", "def", 100), Call("b", "async", LARGE, 3), KillDaemon()),
    "of a worker": (
        Call("a", "peer", LARGE, 3),
        Send("a", LARGE, 3),
        Kill("b"),
        Call("a", "peer", 100),
        Send("b", 100),
    ),
    "by exec": (Call("b", "async", LARGE, 3), Send("a", LARGE, 3), Exec("b")),
}

CHANNELS: dict[str, Program] = {
    "an item for a channel that was closed": (
        Open("x", handed=True), Put("driver", "x"), Settle(), Close("x"), Open("x"), Put("a", "x", 1),
        Get("b", "x", 1, 2),
    ),
    "a get from one that is empty and closed": (
        Open("x", handed=True), Put("driver", "x"), Get("driver", "x"), Settle(), Close("x"), Get("b", "x"),
    ),
    "puts that wait for room at a close": (Open("x", 1), Put("driver", "x", times=3), Put("a", "x", times=3)),
}  # fmt: skip


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with Stage() as stage:
        yield stage


def check(stage: Stage, program: Program) -> None:
    report = stage.play(program)
    if report.violations:
        pytest.fail(str(report), pytrace=False)


@pytest.mark.parametrize("what", LOST_MESSAGES)
def test_no_message_is_lost_with_a_socket(stage: Stage, what: str) -> None:
    check(stage, LOST_MESSAGES[what])


@pytest.mark.parametrize("what", HUNG_CALLS)
def test_no_call_hangs_when_its_socket_goes(stage: Stage, what: str) -> None:
    check(stage, HUNG_CALLS[what])


@pytest.mark.parametrize("what", CHANNELS)
def test_a_channel_is_not_its_name_and_its_close_ends_all_waits(stage: Stage, what: str) -> None:
    check(stage, CHANNELS[what])


@pytest.mark.parametrize("what", DEATHS)
def test_every_wait_ends_with_a_death(stage: Stage, what: str) -> None:
    check(stage, DEATHS[what])


def test_calls_of_other_threads_end_with_the_daemon(stage: Stage) -> None:
    check(stage, (Call("b", "def", 100), KillDaemon(3)))
