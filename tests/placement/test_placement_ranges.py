from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from rlinf_async.errors import ConfigError
from rlinf_async.placement.ranges import parse_rule


def read(rule, num_resources=8):
    """The resources of each process."""
    return [list(ranks) for segment in parse_rule(rule, num_resources) for ranks in segment.get_resources_by_process()]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("3", [[3]]),
        ("0-2", [[0], [1], [2]]),
        ("all", [[0], [1], [2], [3], [4], [5], [6], [7]]),
        (" ALL : 0 - 1 ", [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ("0:0-3", [[0]] * 4),
        ("0-1:0-3", [[0], [0], [1], [1]]),
        ("0-7:0-3", [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ("0-3:0", [[0, 1, 2, 3]]),
        ("0,5", [[0], [5]]),
        ("0-1:0-3,3-5,7-10:7-14", [[0], [0], [1], [1], [3], [4], [5], [7], [7], [8], [8], [9], [9], [10], [10]]),
    ],
)
def test_rules_give_each_process_its_resources(rule, expected):
    assert read(rule) == expected


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("", "Invalid rank format ''"),
        ("0,", "Invalid rank format ''"),
        ("x", "Invalid rank format 'x' in 'x', expected a number such as 3, a range such as 0-3, or all"),
        ("-1", "Invalid rank format '-1'"),
        ("0-1-2", "Invalid rank format '0-1-2'"),
        ("0:1:2", "Invalid rank format '1:2'"),
        ("0:", "Invalid rank format ''"),
        ("0.5", "Invalid rank format '0.5'"),
        ("9999999999", "Invalid rank format"),
        ("3-1", "Start rank 3 must be less than or equal to end rank 1"),
        ("0-3:all", "process ranks, after the ':', cannot be 'all'"),
        ("0-3,2-5", "Resource ranks must be unique: 2 is named twice in '0-3,2-5'"),
        ("4-5,0-1,5", "Resource ranks must be in ascending order: 0 comes after 5"),
        ("0,0", "Resource ranks must be unique: 0 is named twice"),
        ("0-3:4-7", "Process ranks must be in ascending order and continuous, from 0 on: expected 0, got 4"),
        ("0:0,1:2", "Process ranks must be in ascending order and continuous, from 0 on: expected 1, got 2"),
        ("0:0-1,1:1", "Process ranks must be unique: 1 comes again"),
        ("0-1:0-2", "'0-1:0-2': the number of process ranks 3 must be divisible by the number of resource ranks 2"),
        ("0-2:0-1", "number of process ranks 2 must be divisible by the number of resource ranks 3"),
    ],
)
def test_malformed_rules_say_what_is_wrong(rule, text):
    with pytest.raises(ConfigError, match=text):
        parse_rule(rule, 8)


def test_all_of_nothing_is_refused():
    with pytest.raises(ConfigError, match="'all' names nothing here: there is none"):
        parse_rule("all", 0)


@settings(deadline=None, derandomize=True)
@given(st.text(alphabet="0123-:, al", max_size=12))
def test_any_text_is_read_or_refused_with_a_config_error(text):
    try:
        assert parse_rule(text, 4)
    except ConfigError:
        pass
