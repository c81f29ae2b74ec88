"""``cluster.supervision``: which groups' ranks are started again, and how often."""

from __future__ import annotations

from typing import Any

import pytest

from rlinf_async import ClusterConfig, ConfigError
from rlinf_async.configuration import RestartPolicy


def read(supervision: Any, **section: Any) -> ClusterConfig:
    return ClusterConfig.from_dict_cfg({"cluster": {"num_nodes": 1, "supervision": supervision, **section}})


def test_a_policy_for_each_group() -> None:
    config = read({"rollout": {"restart": "rank", "max_restarts": 5, "window": 60}, "actor": {"restart": "group"}})
    assert config.supervision == {"rollout": RestartPolicy("rank", 5, 60), "actor": RestartPolicy("group", 3, 600.0)}
    assert ClusterConfig().supervision == {}


def test_where_there_are_components_it_names_some_of_them() -> None:
    placement = {"actor,rollout": 0, "env": 0}
    assert "rollout" in read({"rollout": {"restart": "rank"}}, component_placement=placement).supervision
    with pytest.raises(ConfigError, match=r"'rolout' is no component \(did you mean 'rollout'\?\); there are: actor"):
        read({"rolout": {"restart": "rank"}}, component_placement=placement)


@pytest.mark.parametrize(
    ("supervision", "text"),
    [
        (3, "supervision must map groups to policies, such as .*, got 3"),
        ({"a": "rank"}, "got 'rank'"),
        ({"a": {}}, "Missing fields"),
        ({"a": {"restart": "foo"}}, "restart is one of 'never', 'rank', 'group', got 'foo'"),
        ({"a": {"restart": "rank", "max_restart": 3}}, "did you mean 'max_restarts'"),
        ({"a": {"restart": "rank", "max_restarts": -3}}, "max_restarts must be .* not negative, got -3"),
        ({"a": {"restart": "rank", "max_restarts": 1.5}}, "got 1.5"),
        ({"a": {"restart": "rank", "window": 0}}, "seconds above 0, got 0"),
        ({"a": {"restart": "rank", "window": 10**400}}, "seconds above 0, got 1000"),
        ({"a": {"restart": "rank", "window": "1m"}}, "seconds above 0, got '1m'"),
        ({"a": {"restart": "rank", "order": "ranks"}}, r"order is one of 'group', 'rank', got 'ranks' \(did you mean"),
        ({"a": {"restart": "group", "order": "rank"}}, "order='rank' goes with restart='rank', got restart='group'"),
    ],
)
def test_what_cannot_be_meant_is_said_with_its_place(supervision: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        read(supervision)
    assert "cluster.supervision" in str(caught.value)


def test_what_launch_says_wins_piece_by_piece() -> None:
    configured = RestartPolicy("group", 7, 60.0)
    assert RestartPolicy.of(None, None, None, None, configured) == configured
    assert RestartPolicy.of("rank", None, 5, None, configured) == RestartPolicy("rank", 7, 5)
    assert RestartPolicy.of(None, None, None, None, None) == RestartPolicy()
    by_rank = RestartPolicy.of("rank", None, None, "rank", None)
    assert by_rank.by_rank
    assert RestartPolicy.of(None, 9, None, None, by_rank) == RestartPolicy("rank", 9, order="rank")
    assert RestartPolicy.of("group", None, None, None, by_rank) == RestartPolicy("group")
    assert RestartPolicy.of("never", None, None, None, configured).restarts is False
    with pytest.raises(
        ConfigError, match=r"launch\(\): restart is one of .* for example launch\(\.\.\., restart='rank'"
    ):
        RestartPolicy.of("foo", None, None, None, configured)
