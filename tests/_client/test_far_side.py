"""Lines about workers that others wait for."""

from __future__ import annotations

from rlinf_async._client.far_side import _fold


def test_ranks_that_are_at_the_same_share_a_line() -> None:
    in_step = [("", [("step", age)], 1) for age in (1.0, 2.0)]
    facts = {("actor", rank): of_rank for rank, of_rank in enumerate([*in_step, None])}
    assert _fold(facts) == ["ranks 0-1 of 'actor' are in step (1-2 s)", "rank 2 of 'actor' is ended"]
