"""The receiver's version rule and the sender's ledger, as plain state."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from rlinf_async.weights.state.versions import Ledger, Reception, Verdict

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
    assert reception.judge(version, sender) is Verdict[expected]
    assert (reception.version, reception.published) == (3, max(3, version))


def test_the_number_of_a_version_whose_sender_is_not_told_is_any_senders() -> None:
    reception = Reception()
    reception.applied(3)
    assert reception.judge(3, "it") is Verdict.DUPLICATE


@given(st.lists(NUMBERS))
def test_whatever_arrives_in_whatever_order_a_receiver_never_goes_back(versions: list[int]) -> None:
    """Doubled, reordered and lost versions: what is applied is always the latest that has come."""
    reception = Reception()
    for version in versions:
        before = reception.version
        verdict = reception.judge(version)
        assert (verdict is Verdict.APPLY) == (version > before)
        if verdict is Verdict.APPLY:
            reception.applied(version)
        assert reception.staleness == reception.published - reception.version >= 0
    assert reception.version == max(versions, default=0)


@pytest.mark.parametrize("lose", [Reception.torn, Reception.moved])
def test_what_is_torn_or_to_go_somewhere_else_takes_the_same_version_once_more(lose: Any) -> None:
    reception = Reception()
    reception.applied(3)
    lose(reception)
    assert reception.judge(3) is Verdict.APPLY
    reception.applied(3)
    assert reception.judge(3) is Verdict.DUPLICATE


def test_what_is_written_over_a_torn_version_does_not_make_it_whole() -> None:
    reception = Reception()
    reception.applied(3)
    reception.torn()
    reception.overwritten(4)
    assert (reception.version, reception.published, reception.is_whole) == (4, 4, False)
    with pytest.raises(ValueError, match="version 3 cannot follow version 4"):
        reception.overwritten(3)


def test_a_version_that_would_go_back_is_refused() -> None:
    reception = Reception()
    reception.applied(3)
    with pytest.raises(ValueError, match="version 2 cannot follow version 3"):
        reception.applied(2)


def two() -> Ledger:
    ledger = Ledger()
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
    ledger.forget(1)
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
    ledger.forget(1)
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


@given(st.data())
def test_every_version_is_completed_exactly_once_whatever_is_answered(data: st.DataObject) -> None:
    ledger = Ledger()
    names = ["a", "b", "c"]
    for name in names:
        ledger.add(name)
    done: list[int] = []
    for version in range(1, 5):
        if ledger.begin(version, data.draw(st.sets(st.sampled_from(names)))):
            done.append(version)
            ledger.finish(version)
        for _ in range(data.draw(st.integers(0, 6))):
            name, about = data.draw(st.sampled_from(names)), data.draw(NUMBERS)
            if data.draw(st.booleans()):
                complete = [about] if ledger.answer(name, about, "word") else []
            else:
                complete = ledger.gone(name, "dead", "gone")
            done += complete
            for each in complete:
                ledger.finish(each)
    for name in names:
        complete = ledger.remove(name, "removed")
        done += complete
        for each in complete:
            ledger.finish(each)
    assert sorted(done) == [1, 2, 3, 4]
    assert ledger.pending == {}
