from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from rlinf_async.configuration import format_ranks, parse_rank_config
from rlinf_async.errors import ConfigError


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (3, [3]),
        ("3", [3]),
        ("0-2,5", [0, 1, 2, 5]),
        (" 1 - 2 , 0 ", [0, 1, 2]),
        ([0, 1], [0, 1]),
        ([4, "0-1"], [0, 1, 4]),
        ("all", [0, 1, 2, 3, 4, 5]),
    ],
)
def test_numbers_ranges_lists_and_all_are_understood(written, meant):
    assert parse_rank_config(written, range(6)) == meant


@pytest.mark.parametrize(
    ("written", "available", "text"),
    [
        ("x", None, "Invalid rank format 'x'"),
        ("", None, "Invalid rank format ''"),
        (None, None, "Invalid rank format None"),
        (True, None, "Invalid rank format True"),
        ([], None, r"Invalid rank format \[\]"),
        ([[True]], None, "Invalid rank format True"),
        (b"0", None, "Invalid rank format b'0'"),
        ("0-999999999", range(4), "'0-999999999' is 1000000000 ranks, more than 65536"),
        ("-1", None, "Invalid rank format '-1'"),
        ("2-1", None, "Start rank 2 must be less than or equal to end rank 1"),
        ("all", None, "'all' says nothing here: it is not known which node ranks there are"),
        ("1,0-1", None, "node rank 1 is named twice"),
        ("0-5", [0, 1, 4, 5], "node rank 2 of '0-5' is not there: there are 0-1,4-5"),
        (0, [], "node rank 0 of 0 is not there: there are none"),
    ],
)
def test_what_cannot_be_meant_is_refused(written, available, text):
    with pytest.raises(ConfigError, match=text):
        parse_rank_config(written, available, "node")


@settings(deadline=None, derandomize=True)
@given(st.sets(st.integers(0, 40), min_size=1))
def test_ranks_survive_being_written_and_read(ranks):
    assert parse_rank_config(format_ranks(sorted(ranks)), ranks) == sorted(ranks)
