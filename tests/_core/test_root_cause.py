"""Root cause of several ranks' failures, and the short text about the others."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from hypothesis import given, strategies as st

from rlinf_async._core.failures import Failure, capture, rebuild
from rlinf_async._core.root_cause import choose_root_cause, fold_ranks, name_ranks, root_cause
from rlinf_async.errors import ClosedError, NodeLost, WorkerDied

ACTOR = {"group": "actor", "rank": 2, "node": "node01", "pid": 4121}


class HoldsALock(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


def failed(type_name: str, when: float, text: str = "x") -> Failure:
    return Failure(type_name, text, "", when=when)


def received(error: BaseException, when: float) -> Exception:
    failure = capture(error, ACTOR)
    return rebuild(Failure(**{**vars(failure), "when": when}))


def death() -> WorkerDied:
    return WorkerDied("rank 3 killed by SIGKILL\n  open calls step")


@pytest.mark.parametrize(
    ("errors", "root"),
    [
        ([failed("ValueError", 2.0), failed("KeyError", 1.0), failed("OSError", 3.0)], 1),
        ([failed("ValueError", 1.0), death()], 1),
        ([failed("ValueError", 1.0), failed("rlinf_async.errors.NodeLost", 5.0)], 1),
        ([failed("rlinf_async.errors.WorkerDied", 1.0), death()], 1),
        ([received(NodeLost("told"), 1.0), death()], 1),
        ([received(ValueError("late"), 2.0), received(KeyError("early"), 1.0)], 1),
        ([ClosedError("of our own"), received(ValueError("x"), 9.0)], 1),
        ([failed("asyncio.exceptions.CancelledError", 1.0), failed("ValueError", 2.0)], 1),
        ([received(asyncio.CancelledError(), 1.0), received(ValueError("x"), 2.0)], 1),
        ([failed("ValueError", 1.0), failed("ValueError", 1.0)], 0),
    ],
)
def test_a_death_outranks_errors_which_outrank_cancellations_and_the_earliest_wins(
    errors: list[Any], root: int
) -> None:
    assert root_cause(list(enumerate(errors)))[0] == root
    turned = [(rank, error) for rank, error in enumerate(reversed(errors))]
    if root:
        assert root_cause(turned)[0] == len(errors) - 1 - root


def test_the_other_failures_are_folded_by_what_they_say() -> None:
    lost = [(rank, failed("ConnectionError", 2.0, "peer is gone\nmore")) for rank in (0, 1, 2, 3, 5)]
    others = [(6, ValueError("odd")), (7, received(HoldsALock("locked"), 5.0)), (8, AssertionError())]
    index, lines = root_cause([*lost, (4, death()), *others])
    assert index == 5
    assert lines == [
        "ranks 0-3,5: ConnectionError: peer is gone",
        "rank 6: ValueError: odd",
        "rank 7: tests._core.test_root_cause.HoldsALock: locked",
        "rank 8: AssertionError",
    ]


def test_a_thousand_different_failures_do_not_make_a_thousand_lines() -> None:
    _, lines = root_cause([(rank, failed("ValueError", rank, f"env {rank}" * 100)) for rank in range(1000)])
    assert lines[-1] == "and 983 other failures"
    assert len(lines) == 17
    assert max(map(len, lines)) < 250


def test_the_chosen_error_carries_the_others_in_a_note() -> None:
    one = choose_root_cause([(0, received(KeyError("a"), 1.0)), (1, received(ValueError("b"), 2.0))])
    assert type(one) is KeyError
    assert one.__notes__[-1] == "other failures of the same call:\n    rank 1: ValueError: b"
    alone = choose_root_cause([(0, capture(KeyError("a"), ACTOR))])
    assert type(alone) is KeyError
    assert len(alone.__notes__) == 1


@pytest.mark.parametrize(
    ("ranks", "text"),
    [([0, 1, 2, 5], "0-2,5"), ([], ""), ([3], "3"), ([4, 3], "3-4"), ([1, 1, 3, 5, 6, 7], "1,3,5-7")],
)
def test_fold_ranks(ranks: list[int], text: str) -> None:
    assert fold_ranks(ranks) == text
    assert name_ranks(ranks) == f"{'rank' if len(set(ranks)) == 1 else 'ranks'} {text}"


@given(st.sets(st.integers(0, 200)))
def test_folded_ranks_unfold_to_the_same(ranks: set[int]) -> None:
    unfolded: set[int] = set()
    for piece in filter(None, fold_ranks(ranks).split(",")):
        first, _, last = piece.partition("-")
        unfolded |= set(range(int(first), int(last or first) + 1))
    assert unfolded == ranks
