"""Lines about the ranks that somebody waits for."""

from __future__ import annotations

from rlinf_async._client.far_side import _fold


def test_ranks_that_are_at_the_same_share_a_line() -> None:
    lines = _fold({
        ("ring", 0): ("", [("step", 2.0)], 1),
        ("ring", 1): ("stopped", [("step", 3.0)], 1),
        ("ring", 2): ("", [("step", 4.0)], 3),
        ("ring", 3): None,
        ("other", 0): ("", [], 0),
    })  # fmt: skip
    assert lines == [
        "ranks 0,2 of 'ring' are in step (2-4 s) and 2 more",
        "rank 1 of 'ring' is stopped, in step (3 s)",
        "rank 3 of 'ring' is ended",
        "rank 0 of 'other' is idle",
    ]
