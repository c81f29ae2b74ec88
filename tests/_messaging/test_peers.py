"""Announcement of workers' GPUs to each other, without GPUs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rlinf_async._messaging import peers
from rlinf_async._messaging.peers import SWITCH, Devices
from rlinf_async._transports.devices.gpu_link_choice import Gpu
from rlinf_async.errors import ConfigError

HERE = Gpu("machine 1", "GPU-1", "H100")


@pytest.fixture(autouse=True)
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    own = SimpleNamespace(gpu=HERE, reachable=frozenset())
    monkeypatch.setattr(peers, "_find_own_gpu", lambda: own)


def peer() -> Any:
    return SimpleNamespace(gpu=None, reachable=frozenset(), knows_gpu=False, gpu_link=SimpleNamespace(is_good=True))


def meet() -> tuple[Devices, Any, list[Any]]:
    """A worker that has looked for its GPU, a peer that has told of its own before, and what the peer was told."""
    told: list[Any] = []
    ours, other = Devices(lambda _, facts: told.append(facts)), peer()
    ours.on_gpu(other, "machine 1", "GPU-2", "H100", [])
    ours.detect_gpu()
    return ours, other, told


@pytest.mark.parametrize("said", [None, "", "1"])
def test_links_between_gpus_are_on_by_default(said: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SWITCH, raising=False)
    if said is not None:
        monkeypatch.setenv(SWITCH, said)
    ours, other, told = meet()
    assert told == [("machine 1", "GPU-1", "H100", [])]
    assert ours.link_to(other) == "nccl"


def test_where_they_are_switched_off_nobody_hears_of_the_gpu_and_nobody_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(SWITCH, "0")
    ours, other, told = meet()
    assert ours.own is None
    assert not ours.is_awaited
    assert ours.link_to(other) is None
    assert told == []


def test_anything_else_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "off")
    with pytest.raises(ConfigError, match=r"RLINF_GPU_LINKS='off' .*: 0 switches links between GPUs off"):
        Devices(lambda peer, facts: None)
