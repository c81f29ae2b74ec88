"""The receiver's version rule and the sender's ledger, as plain state."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rlinf_async.weights.state.versions import Judgement, Reception, VersionLedger, next_version

NUMBERS = st.integers(1, 6)


@pytest.mark.parametrize(
    ("version", "sender", "expected"),
    [
        (4, "it", "APPLY"),
        (4, "another", "APPLY"),
        (3, "it", "DUPLICATE"),
        (3, None, "DUPLICATE"),
        (3, "another", "STALE"),
        (2, "it", "STALE"),
        (2, None, "STALE"),
    ],
)
@pytest.mark.parametrize("state", ["whole", "torn", "moved"])
def test_weights_are_judged_by_their_number_and_their_sender(
    state: str, version: int, sender: str | None, expected: str
) -> None:
    reception = Reception()
    reception.overwritten(3, "it")
    if state == "torn":
        reception.torn()
    elif state == "moved":
        reception.moved()
    if state != "whole" and expected == "DUPLICATE":
        expected = "APPLY"
    assert reception.judge(version, sender) is Judgement[expected]
    assert (reception.version, reception.published) == (3, max(3, version))


def test_the_number_of_a_version_whose_sender_is_not_told_is_any_senders() -> None:
    reception = Reception()
    reception.applied(3)
    assert reception.judge(3, "it") is Judgement.DUPLICATE


@pytest.mark.parametrize("lose", [Reception.torn, Reception.moved])
def test_what_is_torn_or_to_go_somewhere_else_takes_the_same_version_once_more(lose: Any) -> None:
    reception = Reception()
    reception.applied(3)
    lose(reception)
    assert reception.judge(3) is Judgement.APPLY
    reception.applied(3)
    assert reception.judge(3) is Judgement.DUPLICATE


def test_what_is_written_over_a_torn_version_does_not_make_it_whole() -> None:
    reception = Reception()
    reception.applied(3)
    reception.torn()
    reception.overwritten(4)
    assert (reception.version, reception.published, reception.is_whole) == (4, 4, False)
    with pytest.raises(ValueError, match="version 3 cannot follow version 4"):
        reception.overwritten(3)


def two() -> VersionLedger:
    ledger = VersionLedger()
    ledger.add("a")
    ledger.add("b")
    return ledger


def test_a_version_is_complete_when_all_have_answered_it() -> None:
    ledger = two()
    assert not ledger.begin(1, ["a", "b"])
    assert not ledger.answer("a", 1, "yes")
    assert ledger.pending == {1: ["b"]}
    assert ledger.answer("b", 1, "no", "it would not")
    assert ledger.finish(1) == {"a": "yes", "b": "no"}
    assert ledger.pending == {}
    assert (ledger.targets["a"].acked, ledger.targets["b"].acked) == (1, 0)
    assert ledger.targets["b"].trouble == "it would not"


def test_an_answer_to_another_version_does_not_count() -> None:
    ledger = two()
    ledger.begin(1, ["a", "b"])
    ledger.finish(1)
    ledger.begin(2, ["a"])
    assert not ledger.answer("a", 1, "late")
    assert not ledger.answer("b", 2, "was not asked")
    assert not ledger.answer("stranger", 2, "who?")
    assert ledger.pending == {2: ["a"]}
    assert ledger.answer("a", 2, "yes")
    assert not ledger.answer("a", 2, "twice")
    assert ledger.finish(2) == {"a": "yes"}


def test_the_answers_of_those_who_are_gone_before_a_version_is_published_are_among_its_answers() -> None:
    ledger = two()
    assert not ledger.begin(1, ["a", "removed"], {"removed": "was removed"})
    assert ledger.answer("a", 1, "yes")
    assert ledger.finish(1) == {"removed": "was removed", "a": "yes"}
    assert ledger.begin(2, ["removed"], {"removed": "was removed"}), "nobody is waited for"
    assert ledger.finish(2) == {"removed": "was removed"}


def test_a_version_that_is_forgotten_when_its_last_answer_has_come_is_finished_by_nobody() -> None:
    ledger = two()
    ledger.begin(1, ["a"])
    assert ledger.answer("a", 1, "yes")
    ledger.finish(1)
    assert ledger.finish(1) is None


def test_who_answers_late_is_whole_again_but_not_by_an_answer_to_an_old_version() -> None:
    ledger = two()
    ledger.begin(1, ["a"])
    ledger.answer("a", 1, "yes")
    ledger.begin(2, ["a"])
    ledger.answer("a", 2, "no", "late")
    ledger.answer("a", 1, "again", "what?")
    assert ledger.targets["a"].trouble == "late"
    ledger.answer("a", 2, "yes after all")
    assert ledger.targets["a"].trouble is None
    assert ledger.targets["a"].acked == 2


def test_who_is_gone_completes_what_waited_for_it_alone() -> None:
    ledger = two()
    ledger.begin(1, ["a"])
    ledger.begin(2, ["a", "b"])
    assert ledger.gone("a", "dead", "it died") == [1]
    assert ledger.answer("b", 2, "yes")
    assert ledger.finish(2) == {"a": "dead", "b": "yes"}


def test_versions_only_grow() -> None:
    ledger = two()
    ledger.begin(7, [])
    assert ledger.check(None) == 8
    with pytest.raises(ValueError, match="version 7 is not after version 7"):
        ledger.check(7)


def test_an_answer_is_also_that_to_earlier_versions_which_were_skipped() -> None:
    ledger = two()
    for version in range(1, 5):
        ledger.begin(version, ["a", "b"] if version < 4 else ["b"])
    assert ledger.answer("b", 4, "yes") == [4]
    assert ledger.answer("a", 3, "no", "it would not", compared=[2]) == [3, 1]
    assert ledger.finish(1) == {"a": "no", "b": "yes"}
    assert ledger.pending[2] == ["a"], "it is being compared"


def test_a_version_under_way_is_in_excess_if_more_are_than_receivers_may_be_behind() -> None:
    ledger = two()
    for version in (1, 3, 4, 7):
        ledger.begin(version, ["a"])
    assert [ledger.excess(behind) for behind in range(4)] == [[1, 3, 4], [1, 3], [1], []]


class Synchronisation(RuleBasedStateMachine):
    """A sender that is ``behind`` versions ahead at most, and receivers that are quick, slow, mended, gone and back."""

    @initialize(behind=st.integers(0, 3))
    def begin(self, behind: int) -> None:
        self.behind, self.ledger = behind, VersionLedger()
        self.receivers: dict[str, Reception] = {}
        self.told: dict[str, list[int]] = {}
        self.published: list[int] = []
        self.ended: list[int] = []

    def end(self, versions: list[int]) -> None:
        for version in versions:
            answers = self.ledger.finish(version)
            assert answers is not None, "each ends once"
            self.ended.append(version)

    @rule(name=st.sampled_from("abc"))
    def add(self, name: str) -> None:
        if name not in self.receivers:
            self.ledger.add(name)
            self.receivers[name], self.told[name] = Reception(), self.published[-1:]

    @rule(name=st.sampled_from("abc"))
    def leave(self, name: str) -> None:
        if self.receivers.pop(name, None) is not None:
            self.end(self.ledger.remove(name, "left"))

    @precondition(lambda self: len(self.published) < 12)
    @rule(by=st.integers(1, 3))
    def publish(self, by: int) -> None:
        self.published.append(version := self.ledger.version + by)
        if self.ledger.begin(version, self.receivers):
            self.end([version])
        for name in self.receivers:
            self.told[name].append(version)
        for late in self.ledger.excess(self.behind):
            for name in self.ledger.pending[late]:
                self.end([late] if self.ledger.settle(name, late, "behind", "it is behind") else [])

    @rule(name=st.sampled_from("abc"), count=st.integers(1, 3), fails=st.booleans())
    def take(self, name: str, count: int, fails: bool) -> None:
        """A receiver reads some of what it was told, and takes the newest of that."""
        if name not in self.receivers or not self.told[name]:
            return
        version, self.told[name] = self.told[name][:count][-1], self.told[name][count:]
        reception = self.receivers[name]
        if not fails and reception.judge(version) is Judgement.APPLY:
            reception.applied(version)
        self.end(self.ledger.answer(name, version, "answer", "no" if fails else None))

    @rule(data=st.data())
    def run_out_of_time(self, data: st.DataObject) -> None:
        if pending := self.ledger.pending:
            version = data.draw(st.sampled_from(list(pending)))
            for name in pending[version]:
                self.end([version] if self.ledger.settle(name, version, "late", "it is late") else [])

    @invariant()
    def what_is_promised_holds(self) -> None:
        if hasattr(self, "ledger"):
            assert len(self.ledger.pending) <= self.behind + 1
            assert {reception.version for reception in self.receivers.values()} <= {0, *self.published}
            assert sorted([*self.ended, *self.ledger.pending]) == self.published

    def teardown(self) -> None:
        if not hasattr(self, "ledger"):
            return
        for name in list(self.receivers):
            self.take(name, 99, fails=False)
            assert self.receivers[name].version == max([0, *self.published[-1:]]) or not self.told[name]
            self.leave(name)
        assert self.ledger.pending == {}
        assert sorted(self.ended) == self.published


TestSynchronisation = Synchronisation.TestCase
TestSynchronisation.settings = settings(max_examples=150, stateful_step_count=30, deadline=None, derandomize=True)


@pytest.mark.parametrize(
    ("last", "version", "expected"),
    [(0, None, 1), (7, None, 8), (7, 9, 9), (7, 7, ValueError), (7, 6, ValueError), (7, True, TypeError)],
)
def test_the_next_version_is_a_number_after_the_last(last: int, version: Any, expected: Any) -> None:
    if isinstance(expected, int):
        assert next_version(last, version) == expected
    else:
        with pytest.raises(expected):
            next_version(last, version)
