"""Kinds of values by every way: arguments, results, streams, messages, channels, what weights have beside tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from rlinf_async import Channel, Cluster, NodePlacementStrategy, WorkerGroup
from rlinf_async.weights.model.source import pack_extra, unpack_extra
from tests._support.values import VALUES, Trader, traits

pytestmark = pytest.mark.shared_cluster


class Traders(NamedTuple):
    a: WorkerGroup[Trader]
    b: WorkerGroup[Trader]
    channel: Channel[Any]


@pytest.fixture(scope="module")
def traders() -> Iterator[Traders]:
    with Cluster(num_nodes=1, log_to_driver=False) as cluster:
        a, b = (Trader.create_group().launch(cluster, NodePlacementStrategy([0]), name=name) for name in "ab")
        yield Traders(a, b, Channel.create("values"))


def by_argument(traders: Traders, name: str) -> list[str]:
    return [traders.a.take(VALUES[name]).wait(60)[0] for _ in range(2)]


def by_result(traders: Traders, name: str) -> list[str]:
    return [traits(traders.a.give(name).wait(60)[0]) for _ in range(2)]


def by_stream(traders: Traders, name: str) -> list[str]:
    return [traits(item) for _, item in traders.a.stream(name)]


def by_put(traders: Traders, name: str) -> list[str]:
    for _ in range(2):
        traders.channel.put(VALUES[name], timeout=60)
    return [traits(traders.channel.get(timeout=60)) for _ in range(2)]


def by_weights(traders: Traders, name: str) -> list[str]:
    tree: Any = SimpleNamespace(extra={"step": VALUES[name]})
    return [traits(unpack_extra(pack_extra(tree))["step"]) for _ in range(2)]


@pytest.mark.parametrize("way", [by_argument, by_result, by_stream, by_put, by_weights])
def test_every_kind_of_value_travels_twice_by_every_way(
    way: Callable[[Traders, str], list[str]], traders: Traders
) -> None:
    wrong = {}
    for name, value in VALUES.items():
        try:
            came = way(traders, name)
        except Exception as error:
            wrong[name] = repr(error)
        else:
            if came != [traits(value)] * 2:
                wrong[name] = str(came)
    assert not wrong


def test_every_kind_of_value_travels_twice_from_worker_to_worker(traders: Traders) -> None:
    sent = traders.a.send_all("b")
    came = traders.b.receive_all("a").wait(60)[0]
    sent.wait(60)
    assert came == [traits(value) for value in VALUES.values() for _ in range(2)]
