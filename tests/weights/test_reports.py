"""Sync reports: bytes sent, and unknown outcomes marked as such."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlinf_async import DistributedTransport, WeightSyncScheme
from rlinf_async.weights import Publisher, Subscriber
from rlinf_async.weights.schemes.ways import OneWay
from rlinf_async.work import Work
from tests._support.weight_parts import LocalLink
from tests.weights.ends import CALLED, SCHEMES, Tied, both

ALIGNED = 256
"""Bytes of which every tensor takes a multiple where it is packed."""

TENSORS = 5
"""Of the model, all smaller than that."""

every_scheme = pytest.mark.parametrize("kind", SCHEMES)


@every_scheme
async def test_bytes_are_those_of_the_weights_that_were_sent(kind: str) -> None:
    tree = {name: tensor for name, tensor in Tied().state_dict().items() if name != "head.weight"}
    async with both(kind) as ends:
        whole = sum(tensor.nbytes for tensor in tree.values()) if kind in CALLED else TENSORS * ALIGNED
        part = tree["layers.1.bias"].nbytes + tree["steps"].nbytes if kind in CALLED else 2 * ALIGNED
        assert (await ends.deliver()).bytes == whole
        assert (await ends.deliver(keys=["layers.1.bias", "steps"])).bytes == part
        assert (await ends.deliver()).bytes == whole


async def test_bytes_are_counted_in_the_dtype_that_travels() -> None:
    source = {"w": torch.zeros(1024)}
    for kind in ("multiprocess", "distributed"):
        async with both(kind, model=_like(source), source=source, transport_dtype="bfloat16") as ends:
            assert (await ends.deliver()).bytes == 2048


def _like(source: dict[str, torch.Tensor]) -> Any:
    return {name: torch.ones_like(tensor) for name, tensor in source.items()}


@every_scheme
async def test_seconds_that_nobody_has_measured_are_none(kind: str) -> None:
    async with both(kind) as ends:
        ack = (await ends.deliver()).per_worker[0]
        seconds = [ack.t_recv, ack.t_apply, ack.t_pause]
        if kind in ("multiprocess", "shared memory"):
            assert all(each is not None and each >= 0 for each in seconds)
        else:
            assert seconds == [None] * 3


async def test_what_goes_nowhere_has_no_bytes() -> None:
    async with both("worker") as ends:
        ends.sender._transports[0]._remote_collector = None
        assert (await ends.sender.send()).bytes == 0
    assert DistributedTransport().nbytes == 0


async def test_of_a_transport_that_does_not_count_the_tensors_are_and_what_is_none_is_nothing() -> None:
    update = SimpleNamespace(version=1, timeout=None, model_id="policy", keys=None)
    transport = SimpleNamespace(send_weights=lambda model_id, weights: None)
    for weights, nbytes in (({"w": torch.zeros(3), "x": 1}, 12 + 8), ("something else", 0)):
        way = OneWay(0, transport)
        await way.stage(SimpleNamespace(**vars(update), weights=weights))  # type: ignore[arg-type]
        assert way.nbytes == nbytes


class FarLink(LocalLink):
    """Within one process, as if the other end were on another machine."""

    node = 1
    waiting: dict[int, list[tuple[Any, Any, Work[None]]]]
    """By line: tensors for which the other end has not asked, or that it has not sent, and of which end."""
    both: threading.Lock

    @classmethod
    def far_pair(cls) -> tuple[FarLink, FarLink]:
        ends = cls("the receiver"), cls("the sender")
        ends[0]._other, ends[1]._other = ends[1], ends[0]
        ends[0].waiting = ends[1].waiting = defaultdict(list)
        ends[0].both = ends[1].both = threading.Lock()
        return ends

    def send_tensor(self, tensor: Any, line: int, receiver: Any = None) -> Work[None]:
        return self._meet(line, tensor, lambda mine, theirs: theirs.copy_(mine))

    def receive_tensor(self, tensor: Any, line: int, sender: Any = None) -> Work[None]:
        return self._meet(line, tensor, lambda mine, theirs: mine.copy_(theirs))

    def _meet(self, line: int, mine: Any, copy: Callable[[Any, Any], Any]) -> Work[None]:
        work: Work[None] = Work()
        with self.both:
            waiting = self.waiting[line]
            if not waiting or waiting[0][0] is self:
                waiting.append((self, mine, work))
                return work
            _, theirs, met = waiting.pop(0)
        copy(mine, theirs)
        met._settle()
        work._settle()
        return work


async def test_what_has_changed_is_counted_where_only_that_travels() -> None:
    source, model = {"a": torch.zeros(1 << 16), "b": torch.zeros(1 << 16)}, {"a": torch.ones(1 << 16)}
    model["b"] = torch.ones(1 << 16)
    whole = 2 * 4 << 16
    to_receiver, to_sender = FarLink.far_pair()
    async with Publisher(source, delta="on") as publisher, Subscriber(to_sender, model) as far:
        publisher.add("far", to_receiver)
        await asyncio.gather(publisher.connect(20), far.connect(20))
        far.serve()
        report = await (await publisher.publish(source))
        assert report.bytes == whole, "there is nothing that it would be a change of"
        source["a"][:3] = 5.0
        report = await (await publisher.publish(source))
        assert 0 < report.bytes < 1000
        assert model["a"][:4].tolist() == [5.0, 5.0, 5.0, 0.0]
        here, there = LocalLink.pair()
        near = {name: torch.ones_like(tensor) for name, tensor in source.items()}
        async with Subscriber(there, near) as subscriber:
            publisher.add("near", here)
            await asyncio.gather(publisher.connect(20), subscriber.connect(20))
            subscriber.serve()
            source["a"][:3] = 6.0
            report = await (await publisher.publish(source))
            assert report.bytes == whole, "all of it was packed for those of this machine"
            source["a"][:3] = 7.0
            report = await (await publisher.publish(source, keys=["a"]))
            assert report.bytes == whole // 2
        assert near["a"][0] == model["a"][0] == 7.0


async def test_a_publisher_without_a_delta_counts_all_that_travels_for_some_keys() -> None:
    source, model = {"a": torch.zeros(64), "b": torch.zeros(64)}, {"a": torch.ones(64), "b": torch.ones(64)}
    to_receiver, to_sender = FarLink.far_pair()
    async with Publisher(source) as publisher, Subscriber(to_sender, model) as far:
        publisher.add("far", to_receiver)
        await asyncio.gather(publisher.connect(20), far.connect(20))
        far.serve()
        for keys in (None, ["a"]):
            report = await (await publisher.publish(source, keys=keys))
            assert report.bytes == 2 * ALIGNED


async def test_a_report_of_no_synchronisation_has_nothing() -> None:
    scheme = WeightSyncScheme.from_backend("none")
    scheme.init_on_sender("policy")
    report = await scheme.get_sender().send({"w": torch.zeros(2)})
    assert (report.bytes, dict(report.per_worker)) == (0, {})
    await scheme.close()
