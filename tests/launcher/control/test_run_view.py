"""Choice of groups and ranks by words."""

from __future__ import annotations

import pytest

from rlinf_async._inspection.state.run_report import ProcessReport, RunReport
from rlinf_async.errors import ConfigError
from rlinf_launcher.control.run_places import NoSuchRun
from rlinf_launcher.control.run_view import RunView, split_ranks


def process(endpoint: int, group: str, rank: int) -> ProcessReport:
    role = "worker" if group else "driver"
    name = f"{group}:{rank}" if group else "driver"
    return ProcessReport(endpoint, role, name, group, rank, node=0, node_name="here", pid=100 + endpoint)


VIEW = RunView(
    RunReport(
        "0a0a0a0a",
        [process(1, "", -1), *(process(10 + rank, "rollout", rank) for rank in (2, 0, 1)), process(20, "actor", 0)],
    ),
    details={},
    missing={},
)


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("rollout", ["rollout:0", "rollout:1", "rollout:2"]),
        ("rollout:1", ["rollout:1"]),
        ("rollout:0-1", ["rollout:0", "rollout:1"]),
        ("rollout:2,0", ["rollout:0", "rollout:2"]),
        ("driver", ["driver"]),
    ],
)
def test_words_choose_ranks_in_their_order(words: str, names: list[str]) -> None:
    assert [chosen.name for chosen in VIEW.choose(words)] == names


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("critic", "there is no group 'critic'; there are: actor:0, rollout:0-2"),
        ("rollout:7", "group 'rollout' has no rank 7; it has 0-2"),
        ("critic:x", "there is no group 'critic:x'"),
    ],
)
def test_an_unknown_rank_is_an_error_that_lists_the_known(words: str, said: str) -> None:
    with pytest.raises(NoSuchRun) as refused:
        VIEW.choose(words)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("rollout:3-1", "'rollout:3-1': ranks 3-1 are in reverse\n  fix: write rollout:1-3"),
        ("rollout:0,2-1", "ranks 2-1 are in reverse"),
        ("rollout:x", "'rollout:x': 'x' are no ranks\n  fix: write rollout, rollout:3 or rollout:0-3,7"),
        ("rollout:", "'' are no ranks"),
        ("rollout:0-999999999", "'0-999999999' are no ranks"),
        ("rollout:" + "9" * 5000, "are no ranks"),
        ("driver:3", "'driver:3': a driver is no group, and has no ranks\n  fix: write driver"),
    ],
)
def test_malformed_words_are_wrong_usage_with_the_fix(words: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        VIEW.choose(words)
    assert said in str(refused.value)


def test_a_workers_own_group_has_a_colon_in_its_name() -> None:
    assert split_ranks("rollout:2:0-1", ["rollout", "rollout:2"]) == ("rollout:2", [0, 1])
    assert split_ranks("rollout:2", ["rollout", "rollout:2"]) == ("rollout", [2])
    assert split_ranks("rollout:2", ["rollout:2"]) == ("rollout:2", None)
