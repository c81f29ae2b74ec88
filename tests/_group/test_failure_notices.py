"""Notices of failures: whom they reach, once, and not before they are due."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rlinf_async._core.frames import Status
from rlinf_async._group import failure_notices
from rlinf_async._group.failure_notices import FailureNotices, RankFailure
from rlinf_async._group.members import Members


class Client:
    """A process whose time passes from one timer to the next."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[tuple[float, Any]] = []
        self.told: list[tuple[float, int, list[int]]] = []
        self.ages: list[float] = []

    def listen(self, what: str, listener: Any) -> None: ...

    def later(self, seconds: float, callback: Any) -> None:
        self.timers.append((self.now + seconds, callback))

    def tell_failure(self, call: int, targets: list[int], facts: dict[str, Any]) -> None:
        self.told.append((self.now, call, targets))
        self.ages.append(facts["seconds_ago"])

    def run(self) -> list[float]:
        """Return the moments of the timers, of the first ones where they have no end."""
        moments: list[float] = []
        while self.timers and len(moments) < 10:
            self.now, callback = self.timers.pop(0)
            moments.append(self.now)
            callback()
        return moments


def call(number: int, *waiting: int, departed: bool = True) -> Any:
    """An open call on endpoints 10, 11 and 12, of which those in some slots have not answered."""
    return SimpleNamespace(
        _call=number, _targets=[10, 11, 12], _departed=departed, _unanswered=lambda: list(waiting),
    )  # fmt: skip


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    client = Client()
    monkeypatch.setattr(failure_notices, "clock", SimpleNamespace(monotonic=lambda: client.now))
    return client


def notices_of(client: Client, *calls: Any) -> FailureNotices:
    return FailureNotices(client, {id(each): each for each in calls})  # type: ignore[arg-type]


def test_the_last_answer_to_a_call_tells_open_calls_of_other_ranks_that_it_has_failed(client: Client) -> None:
    members: Any = Members(client, "ring", 3)  # type: ignore[arg-type]
    members.endpoints = [10, 11, 12]
    failed, other = call(1), call(2, 0, 2)
    failed._tally = SimpleNamespace(failures=lambda: [(0, Status.ERROR, b"")])
    members.open.update({id(each): each for each in (failed, other)})
    members.callee([1]).call_finished(failed, failed=True)
    assert list(members.open) == [id(other)]
    ((handler, failure),) = [(each.handler, each.failure) for each in members.notices.concerns.values()]
    assert (handler, failure.rank, failure.endpoint, failure.call) == (other, 1, 11, 1)


FAILED = "rank 1 failed"


def test_ranks_with_open_calls_are_told_once_a_second_after_the_failure_and_nobody_looks_before(client: Client) -> None:
    failed, other = call(1, 0, 2), call(2, 0, 1, 2)
    notices = notices_of(client, failed, other)
    notices.failed(RankFailure(1, 11, 1, lambda: FAILED), failed)
    client.now += 0.4
    notices.failed(RankFailure(1, 11, 1, lambda: FAILED), failed)
    assert client.run() == [101.0, 101.4]
    assert client.told == [(101.0, 2, [10, 12]), (101.4, 1, [10, 12])]
    assert client.ages == pytest.approx([1.0, 1.0])


def test_a_call_that_is_still_being_sent_is_looked_at_again_soon(client: Client) -> None:
    failed = call(1, 0, departed=False)
    notices = notices_of(client, failed)
    notices.failed(RankFailure(1, 11, 1, lambda: FAILED), failed)
    later = client.later

    def depart(*timer: Any) -> None:
        failed._departed = True
        later(*timer)

    client.later = depart  # type: ignore[method-assign]
    assert client.run() == pytest.approx([101.0, 101.05])
    assert [told[1:] for told in client.told] == [(1, [10])]
