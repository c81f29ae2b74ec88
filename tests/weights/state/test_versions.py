"""The receiver's version rule and the sender's ledger, as plain state."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from rlinf_async.weights.state.versions import Ledger, Reception, Verdict

NUMBERS = st.integers(1, 6)


@given(st.lists(st.tuples(NUMBERS, st.none() | st.integers(0, 6))))
def test_whatever_arrives_in_whatever_order_a_receiver_never_goes_back(frames: list[tuple[int, int | None]]) -> None:
    """Duplicated, reordered and lost frames: what is applied is always the latest that could be."""
    reception = Reception()
    for version, base in frames:
        before = reception.version
        verdict = reception.judge(version, base)
        assert (verdict is Verdict.DUPLICATE) == (version <= before)
        if verdict is Verdict.APPLY:
            assert base in (None, before)
            reception.applied(version)
        assert reception.version >= before
        assert reception.published >= reception.version
        assert reception.staleness == reception.published - reception.version
    whole = [version for version, base in frames if base is None]
    assert reception.version >= max(whole, default=0)


def test_a_patch_on_another_version_is_not_taken() -> None:
    reception = Reception()
    reception.applied(3)
    assert reception.judge(5, base=4) is Verdict.NEED_FULL
    assert reception.judge(4, base=3) is Verdict.APPLY
    assert reception.judge(3, base=2) is Verdict.DUPLICATE


def test_after_a_torn_write_only_a_full_version_will_do_even_an_older_one() -> None:
    reception = Reception()
    reception.applied(3)
    reception.torn()
    assert reception.judge(4, base=3) is Verdict.NEED_FULL
    assert reception.judge(3) is Verdict.APPLY
    reception.applied(3)
    assert reception.is_whole


def test_what_is_to_go_somewhere_else_takes_the_same_version_once_more_and_none_before_it() -> None:
    reception = Reception()
    reception.applied(3)
    reception.moved()
    assert reception.judge(2) is Verdict.DUPLICATE
    assert reception.judge(4, base=3) is Verdict.NEED_FULL
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
