from __future__ import annotations

from typing import Any

import pytest
from omegaconf import OmegaConf

from rlinf_async._messaging.state.emulated_delay import NetEmulation
from rlinf_async.configuration import BandwidthGroup, CrossDCPair, NetEmulationConfig, worker_key
from rlinf_async.errors import ConfigError


def pair(**entries: Any) -> dict[str, Any]:
    return {"enabled": True, "crossdc_pairs": [{"src": ["A"], "dst": ["B"], "delay_ms": 1, **entries}]}


def line(**entries: Any) -> dict[str, Any]:
    return {"enabled": True, "bandwidth_groups": [{"members": ["A"], "bandwidth_mbps": 1, **entries}]}


def test_ranges_are_written_out_and_group_is_taken_off_names():
    config = NetEmulationConfig.from_cfg(
        OmegaConf.create(
            """
            enabled: true
            symmetric: false
            crossdc_pairs: [{src: ["EnvGroup:0-1"], dst: ["Rollout:0,2", "Actor"], delay_ms: 10}]
            bandwidth_groups: [{members: "Env:0-1", bandwidth_mbps: 1000}]
            """
        )
    )

    assert config == NetEmulationConfig(
        symmetric=False,
        crossdc_pairs=(CrossDCPair(("Env:0", "Env:1"), ("Rollout:0", "Rollout:2", "Actor"), 10.0),),
        bandwidth_groups=(BandwidthGroup(("Env:0", "Env:1"), 1000.0),),
    )


@pytest.mark.parametrize("section", [None, {}, {"enabled": False}, {**pair(), "enabled": False}])
def test_without_enabled_there_is_none(section):
    assert NetEmulationConfig.from_cfg(section) is None


@pytest.mark.parametrize(("name", "key"), [("EnvGroup:0", "Env:0"), ("Env", "Env"), ("Group:1", "Group:1")])
def test_a_name_is_compared_without_group(name, key):
    assert worker_key(name) == key


@pytest.mark.parametrize(
    ("section", "text"),
    [
        ("x", "net_emulation must be a mapping"),
        ({"enabeld": True}, r"detected in net_emulation \(did you mean 'enabled'\?\)"),
        ({"enabled": "yes"}, "enabled must be true or false"),
        ({"enabled": True, "crossdc_pairs": {}}, "crossdc_pairs must be a list"),
        ({"enabled": True, "crossdc_pairs": ["x"]}, "each entry must be a mapping with src, dst, delay_ms"),
        (pair(src=[]), "src must not be empty"),
        (pair(dst=[]), "dst must not be empty"),
        (pair(dst=None), r"Missing fields \['dst'\] detected in crossdc_pairs entry"),
        (pair(delay=3), r"detected in crossdc_pairs entry \(did you mean 'delay_ms'\?\)"),
        (pair(src=["A:0-999999999"]), "'0-999999999' is 1000000000 ranks, more than 65536"),
        (pair(delay_ms=10**400), "delay_ms must be a number that is not negative, got 1000"),
        (pair(delay_ms=-1), "delay_ms must be a number that is not negative, got -1"),
        (pair(delay_ms="1"), "delay_ms must be a number"),
        (pair(src=["A:x"]), "'A:x' is no worker"),
        (pair(src=["A:1:2"]), "'A:1:2' is no worker"),
        (pair(src=[3]), "3 is no worker"),
        (pair(src=["A:2-1"]), "Start rank 2 must be less than or equal to end rank 1"),
        (line(members=[]), r"bandwidth_groups\[0\].members: members must not be empty"),
        (line(bandwidth_mbps=0), "bandwidth_mbps must be more than 0"),
        (
            {"enabled": True, "bandwidth_groups": [{"members": ["A:0-1"], "bandwidth_mbps": 1}] * 2},
            r"bandwidth_groups\[1\].members: A:0 is in bandwidth_groups\[0\] already",
        ),
    ],
)
def test_a_mistake_names_its_place(section, text):
    with pytest.raises(ConfigError, match=text):
        NetEmulationConfig.from_cfg(section)


def test_what_is_made_by_hand_means_what_the_yaml_means():
    by_hand = CrossDCPair(src="EnvGroup:0-1", dst=["Rollout"], delay_ms=10)
    assert (by_hand.src, by_hand.dst) == (("Env:0", "Env:1"), ("Rollout",))
    assert BandwidthGroup("EnvGroup:0", 1).members == ("Env:0",)
    emulation = NetEmulation(NetEmulationConfig(crossdc_pairs=[by_hand]))
    assert emulation.delay("Env:1", "Rollout:0") == 0.01


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: CrossDCPair("", "B", 1), "'' is no worker"),
        (lambda: CrossDCPair([], "B", 1), "src must not be empty"),
        (lambda: CrossDCPair("A", None, 1), "dst must be a list, got None"),
        (lambda: CrossDCPair("A", "B", float("nan")), "delay_ms must be a number that is not negative, got nan"),
        (lambda: CrossDCPair("A", "B", "1"), "delay_ms must be a number that is not negative, got '1'"),
        (lambda: BandwidthGroup("A:x", 1), "'A:x' is no worker"),
        (lambda: BandwidthGroup("A", 0), "bandwidth_mbps must be more than 0"),
        (
            lambda: NetEmulationConfig(bandwidth_groups=[BandwidthGroup("A:0-1", 1), BandwidthGroup("A:1", 2)]),
            r"A:1 is in bandwidth_groups\[0\] already",
        ),
    ],
)
def test_what_is_made_by_hand_is_checked_as_the_yaml_is(make, text):
    with pytest.raises(ConfigError, match=text):
        make()
