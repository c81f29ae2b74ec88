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


@st.composite
def rules(draw):
    """A well-formed rule, whether it shares, and the number of its processes and resources."""
    parts, resource, process, shares = [], 0, 0, False
    for _ in range(draw(st.integers(1, 5))):
        resource += draw(st.integers(0, 3))
        few, factor = draw(st.integers(1, 4)), draw(st.integers(1, 4))
        many_processes = draw(st.booleans())
        num_resources, num_processes = (few, few * factor) if many_processes else (few * factor, few)
        text = f"{resource}-{resource + num_resources - 1}"
        if num_resources != num_processes or draw(st.booleans()):
            text += f":{process}-{process + num_processes - 1}"
        parts.append(text)
        shares |= num_processes > num_resources
        resource, process = resource + num_resources, process + num_processes
    return ",".join(parts), shares, process


def test_all_of_nothing_is_refused():
    with pytest.raises(ConfigError, match="'all' names nothing here: there is none"):
        parse_rule("all", 0)


@settings(deadline=None, derandomize=True)
@given(rules())
def test_every_process_is_placed_once_and_nothing_is_shared_unasked(case):
    rule, shares, num_processes = case

    segments = parse_rule(rule, 1000)
    by_process = [ranks for segment in segments for ranks in segment.get_resources_by_process()]
    used = [resource for ranks in by_process for resource in ranks]

    assert len(by_process) == num_processes
    assert used == sorted(used)
    assert set(used) == {resource for segment in segments for resource in segment.resources}
    assert (len(used) != len(set(used))) == shares
    assert [process for segment in segments for process in segment.processes] == list(range(num_processes))


@settings(deadline=None, derandomize=True)
@given(st.text(alphabet="0123-:, al", max_size=12))
def test_any_text_is_read_or_refused_with_a_config_error(text):
    try:
        assert parse_rule(text, 4)
    except ConfigError:
        pass
