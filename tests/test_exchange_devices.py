"""Tensors on GPUs between workers: on GPUs, where there are any, and with stand-ins for them everywhere."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from rlinf_async import Cluster, NodePlacementStrategy
from rlinf_async._transports.devices.gpu_link_choice import CUDA_IPC, NCCL, STAGED
from tests._support import failing_exchanges, gpu_exchanges as talk
from tests._support.exchanges import Talker

pytestmark = pytest.mark.shared_cluster

MiB = 1 << 20
GPUS = torch.cuda.device_count()
NEEDED = {"one GPU": 1, "two GPUs": 2, "two GPUs apart": 2}
"""GPUs; apart, each worker sees its own alone."""
BETWEEN = {CUDA_IPC: CUDA_IPC, NCCL: NCCL, STAGED: STAGED, "one GPU": CUDA_IPC, "two GPUs apart": NCCL}
"""The way that is known beforehand; with two GPUs it depends on whether they reach each other."""
WHERE = [
    CUDA_IPC,
    *(pytest.param(name, marks=pytest.mark.slow) for name in (NCCL, STAGED)),
    *(pytest.param(name, marks=pytest.mark.gpu) for name in NEEDED),
]
"""What stands in for GPUs by the way that is between them; or GPUs."""
NOTHING = "nothing"


class Groups:
    def __init__(self, cluster: Cluster, where: str) -> None:
        self._cluster = cluster
        self.where = where
        self._groups: list[Any] = []

    def launch(self, name: str) -> Any:
        """One worker, which has a GPU."""
        group = Talker.create_group().launch(self._cluster, name=name, placement=NodePlacementStrategy([0]))
        self._groups.append(group)
        if self.where in NEEDED:
            index = (len(self._groups) - 1) % NEEDED[self.where]
            group.do(talk.take_gpu, index, self.where.endswith("apart")).wait(60)
        elif self.where != NOTHING:
            group.do(talk.stand_in, self.where).wait()
        return group

    def pair(self) -> tuple[Any, Any]:
        """Two that know of each other's GPU."""
        a, b = self.launch("a"), self.launch("b")
        meet(a, b)
        return a, b

    def close(self) -> None:
        for group in self._groups:
            group.close()


def meet(a: Any, b: Any) -> None:
    for work in (a.do(talk.meet, "b"), b.do(talk.meet, "a")):
        work.wait(60)


@pytest.fixture(params=WHERE)
def groups(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Groups]:
    needed = NEEDED.get(request.param, 0)
    if needed > GPUS:
        pytest.skip(
            f"needs {needed} NVIDIA GPUs and a torch built for CUDA, and there are {GPUS}: "
            "run the tests on a machine that has them"
        )
    groups = Groups(cluster, request.param)
    yield groups
    groups.close()


def test_all_that_holds_tensors_of_a_gpu_comes_back_as_it_was_and_none_is_copied_to_the_cpu(groups: Groups) -> None:
    a, b = groups.pair()
    echoing = b.do(talk.echo, "a")
    assert a.do(talk.ask_for_echoes, "b").wait(60) == [[]]
    echoing.wait(60)
    for group in (a, b):
        assert group.do(talk.copies).wait() == [[]]
        (ways,) = group.do(talk.ways).wait()
        assert ways == [BETWEEN.get(groups.where, *ways)]


def test_a_tensor_that_was_sent_may_be_written_to_at_once(groups: Groups) -> None:
    a, b = groups.pair()
    receiving = b.do(talk.recv_changing_tensors, "a")
    a.do(talk.send_changing_tensors, "b").wait(60)
    assert receiving.wait(60) == [[True] * 10]


def test_large_tensors_cross_in_both_directions_at_once(groups: Groups) -> None:
    a, b = groups.pair()
    works = [a.do(talk.both_ways, "b", 12), b.do(talk.both_ways, "a", 12)]
    assert [work.wait(60) for work in works] == [[True]] * 2


def test_a_deadline_in_mid_transfer_leaves_what_follows_alone(groups: Groups) -> None:
    a, b = groups.pair()
    nbytes = 100 * MiB
    for seconds in (0.0, 0.005, 0.02, 0.08):
        sending = a.do(talk.send_in_time, "b", nbytes, seconds)
        receiving = b.do(talk.receive_in_time, "a", seconds)
        (sent,), (received,) = sending.wait(60), receiving.wait(60)
        assert received in ("late", str(nbytes))
        a.do(talk.send_without_waiting, "b", MiB).wait()
        left = [nbytes] * (sent == "sent" and received == "late")
        for size in (*left, MiB):
            assert b.do(talk.receive_what_is_there, "a").wait(60) == [size]


def test_a_receiver_learns_of_its_senders_death_in_mid_transfer_and_goes_on_with_others(groups: Groups) -> None:
    a, b = groups.pair()
    for delay in (0.0, 0.01, 0.05):
        victim = b.do(failing_exchanges.pid).wait()[0]
        b.do(talk.send_without_waiting, "a", 200 * MiB).wait()
        receiving = a.do(talk.receive_what_is_there, "b")
        time.sleep(delay)
        os.kill(victim, signal.SIGKILL)
        (received,) = receiving.wait(20)
        assert received == 200 * MiB or "killed by SIGKILL" in received
        b.close()
        b = groups.launch("b")
        meet(a, b)
        a.do(talk.send_without_waiting, "b", MiB).wait()
        assert b.do(talk.receive_what_is_there, "a").wait(60) == [MiB]


def test_a_sender_learns_of_its_receivers_death_in_mid_transfer(groups: Groups) -> None:
    a, b = groups.pair()
    victim = b.do(failing_exchanges.pid).wait()[0]
    sending = a.do(talk.fail_to_send, "b", 200 * MiB)  # which is more than is accepted of anybody beforehand
    b.ado(talk.begin_to_receive, "a").wait()
    os.kill(victim, signal.SIGKILL)
    (outcome,) = sending.wait(20)
    assert outcome == "sent" or "killed by SIGKILL" in outcome


@pytest.mark.parametrize("groups", [CUDA_IPC], indirect=True)
def test_what_no_link_can_bring_arrives_by_way_of_the_cpu(groups: Groups) -> None:
    a, b = groups.pair()
    b.do(talk.break_memory).wait()
    receiving = b.do(talk.recv_changing_tensors, "a")
    a.do(talk.send_changing_tensors, "b").wait(60)
    assert receiving.wait(60) == [[True] * 10]
    assert a.do(talk.copies).wait() == [[3 * MiB] * 10]


@pytest.mark.parametrize("groups", [NOTHING], indirect=True)
def test_who_has_no_gpu_loads_nothing_for_them(groups: Groups) -> None:
    a, b = groups.launch("a"), groups.launch("b")
    receiving = b.do(failing_exchanges.receive_and_keep, "a")
    a.do(failing_exchanges.send_without_waiting, "b", 5 * MiB).wait()
    assert receiving.wait() == [5 * MiB]
    for group in (a, b):
        assert "rlinf_async._transports.devices.own_gpu" not in group.do(failing_exchanges.modules).wait()[0]
