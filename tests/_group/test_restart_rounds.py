"""Rounds of a restart: ranks away and back, attempts, and a death while hooks run."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rlinf_async._group.restart_rounds import Restart, RestartRounds


def test_a_death_during_the_hooks_begins_the_round_anew_and_tells_of_all_its_ranks() -> None:
    rounds = RestartRounds()
    rounds.died(1, {"pid": 11})
    assert rounds.returned(1) == {"pid": 11}
    assert rounds.begin([0, 1, 0]) == Restart((0, 1, 0), (1,), 1)
    rounds.died(2, {"pid": 12})
    assert not rounds.end()
    rounds.returned(2)
    assert rounds.begin([0, 1, 1]) == Restart((0, 1, 1), (1, 2), 2)
    assert rounds.end()
    assert rounds.is_over


def test_a_rank_that_is_given_up_after_it_was_back_is_told_of_no_more() -> None:
    rounds = RestartRounds()
    rounds.died(1, {})
    rounds.returned(1)
    rounds.begin([0, 1])
    rounds.died(1, {})
    assert rounds.begin([0, 1]).ranks == ()
    rounds.abandon(1)
    assert rounds.is_over


def test_a_guess_at_an_end_leaves_the_report_that_was_told() -> None:
    rounds = RestartRounds()
    rounds.died(0, {"verdict": "was killed by SIGKILL"})
    rounds.missed(0, {"verdict": "was not told dead"})
    rounds.missed(1, {"verdict": "was not told dead"})
    assert {rank: report["verdict"] for rank, report in rounds.away.items()} == {
        0: "was killed by SIGKILL",
        1: "was not told dead",
    }


def test_a_restart_reads_as_the_counts_by_rank() -> None:
    restart = Restart((0, 2, 1), (1,), 3)
    assert (restart[1], sum(restart), list(restart), len(restart)) == (2, 3, [0, 2, 1], 3)
    with pytest.raises(IndexError):
        restart[3]


class Rounds(RuleBasedStateMachine):
    """Deaths, returns and attempts in any order: no death is forgotten, and no return is untold."""

    ranks = st.integers(0, 2)

    @initialize()
    def start(self) -> None:
        self.rounds = RestartRounds()
        self.untold: set[int] = set()
        self.attempts: list[int] = []

    @rule(rank=ranks)
    def die(self, rank: int) -> None:
        self.rounds.died(rank, {})

    @rule(rank=ranks)
    def come_back(self, rank: int) -> None:
        if rank in self.rounds.away:
            self.rounds.returned(rank)
            self.untold.add(rank)

    @rule(rank=ranks)
    def give_up(self, rank: int) -> None:
        if rank in self.rounds.away:
            self.rounds.abandon(rank)
            self.untold.discard(rank)

    @rule(victim=st.none() | ranks)
    def run_hooks(self, victim: int | None) -> None:
        restart = self.rounds.begin([0, 0, 0])
        self.attempts.append(restart.attempt)
        assert set(restart.ranks) == self.untold - self.rounds.away.keys()
        if victim is not None:
            self.rounds.died(victim, {})
        if self.rounds.end():
            self.untold.clear()

    @invariant()
    def every_attempt_has_a_number_of_its_own(self) -> None:
        assert len(set(self.attempts)) == len(self.attempts)

    @invariant()
    def the_round_is_over_once_nobody_is_away_or_untold(self) -> None:
        assert self.rounds.is_over == (not self.rounds.away and not self.untold)


TestRounds = Rounds.TestCase
