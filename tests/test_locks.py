"""Device locks and ports among real workers on two nodes: order, deadlines, and the end of their holders."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from rlinf_async import Cluster, DeadlineExceeded, NodePlacementStrategy, Work, WorkerDied, wait_all
from tests._support.exchanges import Talker

pytestmark = pytest.mark.shared_cluster
LOCAL_NODES = 2


class Owner(Talker):
    """Believes that it shares devices 0 and 1 with all the others."""

    def __init__(self) -> None:
        super().__init__()
        self.global_accelerator_ids = [0, 1]


@pytest.fixture
def owners(cluster: Cluster) -> Iterator[Any]:
    """Rank 0 on the node with the locks, ranks 1 and 2 on the other one."""
    group = Owner.create_group().launch(cluster, placement=NodePlacementStrategy([0, 1, 1]), name="owners")
    yield group.wait_ready()
    group.close()


def acquire(worker: Owner, timeout: float | None = None) -> None:
    worker.device_lock.acquire(timeout)


def release(worker: Owner) -> None:
    worker.device_lock.release()


def held(cluster: Cluster) -> Any:
    return cluster.status(0)["devices"]


async def get_in_line(worker: Owner) -> None:
    """Returns when the daemon has passed the request on."""
    worker.kept["place"] = worker.device_lock.acquire()
    await worker.acquire_free_port()


async def wait_for_turn(worker: Owner) -> None:
    await worker.kept["place"]


def test_one_worker_holds_the_devices_and_those_who_wait_get_them_in_order(cluster: Cluster, owners: Any) -> None:
    first, second, third = (owners.execute_on(rank) for rank in range(3))
    first.do(acquire).wait()
    assert held(cluster) == {"owners:0": [0, 1]}
    second.ado(get_in_line).wait()
    third.ado(get_in_line).wait()
    turns = [second.ado(wait_for_turn), third.ado(wait_for_turn)]
    first.do(acquire).wait()  # again: it has it
    first.do(release).wait()
    assert not any(turn.done() for turn in turns)
    first.do(release).wait()
    turns[0].wait()
    assert held(cluster) == {"owners:1": [0, 1]}
    second.do(release).wait()
    turns[1].wait()
    third.do(release).wait()
    assert held(cluster) == {}


def test_a_deadline_names_who_has_the_devices_and_leaves_no_place_in_the_line(cluster: Cluster, owners: Any) -> None:
    owners.execute_on(2).do(acquire).wait()
    late = r"owners:0 \(devices 0, 1\) was not free within 0.05 s: taken by owners:2"
    with pytest.raises(DeadlineExceeded, match=late):
        owners.execute_on(0).do(acquire, 0.05).wait()
    owners.execute_on(2).do(release).wait()
    assert held(cluster) == {}


async def enter_in_the_wrong_way(worker: Owner) -> None:
    with worker.device_lock:
        pass


def test_a_coroutine_is_told_to_use_async_with(owners: Any) -> None:
    with pytest.raises(RuntimeError, match="use `async with`"):
        owners.execute_on(0).ado(enter_in_the_wrong_way).wait()


class Late(Exception):
    pass


def be_interrupted(worker: Owner, how: str) -> None:
    def interrupt(*_: Any) -> None:
        raise Late

    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    with contextlib.suppress(Late):
        if how == "with":
            with worker.device_lock:
                raise AssertionError("it was not to be had")
        worker.device_lock.acquire()


@pytest.mark.parametrize("how", ["with", "acquire"])
def test_a_wait_that_a_signals_handler_interrupts_leaves_nothing_behind(
    how: str, cluster: Cluster, owners: Any
) -> None:
    owners.execute_on(0).do(acquire).wait()
    owners.execute_on(1).do(be_interrupted, how).wait()
    owners.execute_on(0).do(release).wait()
    owners.execute_on(2).do(acquire, 5.0).wait()
    owners.execute_on(2).do(release).wait()
    assert held(cluster) == {}


async def be_cancelled_before_the_first_step(worker: Owner) -> None:
    place = worker.device_lock.acquire()
    await place.async_wait()
    task = asyncio.ensure_future(place)
    task.cancel()
    await asyncio.wait([task])


async def be_cancelled_with_others(worker: Owner) -> None:
    place = worker.device_lock.acquire()
    await place.async_wait()
    task = asyncio.ensure_future(wait_all(place, Work()))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.parametrize("cancelled", [be_cancelled_before_the_first_step, be_cancelled_with_others])
def test_an_acquisition_whose_task_is_cancelled_is_undone(cluster: Cluster, owners: Any, cancelled: Any) -> None:
    owners.execute_on(0).ado(cancelled).wait()
    owners.execute_on(1).do(acquire, 5.0).wait()
    owners.execute_on(1).do(release).wait()
    assert held(cluster) == {}


def kill_me(worker: Owner) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_devices_ports_and_names_come_back_when_their_holder_is_killed(cluster: Cluster, owners: Any) -> None:
    doomed = owners.execute_on(1)
    doomed.do(acquire).wait()
    doomed.do(acquire).wait()
    port = doomed.acquire_free_port().wait()[0]
    assert port in cluster.status(1)["ports"]
    waiting = owners.execute_on(2).do(acquire)
    with pytest.raises(WorkerDied):
        doomed.do(kill_me).wait()
    waiting.wait()
    assert held(cluster) == {"owners:2": [0, 1]}
    assert port not in cluster.status(1)["ports"]
    owners.close()
    again = Owner.create_group().launch(cluster, placement=NodePlacementStrategy([0]), name="owners").wait_ready()
    again.do(acquire).wait()
    assert held(cluster) == {"owners:0": [0, 1]}
    again.close()


def many_ports(worker: Owner, count: int) -> list[int]:
    return [worker.acquire_free_port() for _ in range(count)]


def listen_on(worker: Owner, ports: list[int]) -> int:
    listeners = [socket.create_server(("127.0.0.1", port)) for port in ports]
    for listener in listeners:
        listener.close()
    return len(listeners)


def test_no_port_is_promised_twice_on_a_node_and_all_can_be_listened_on(owners: Any) -> None:
    ports = owners.do(many_ports, 40).wait()
    assert len({*ports[1], *ports[2]}) == 80  # two workers of one node
    assert owners.execute_on(0).do(listen_on, ports[0]).wait() == [40]
    assert all(port <= 30000 for port in owners.acquire_free_port(30000).wait())
    with pytest.raises(ValueError, match="max_port_num must be from 1024 to 65535, got 80"):
        owners.execute_on(0).acquire_free_port(80).wait()


def test_a_worker_without_devices_has_nothing_to_wait_for(cluster: Cluster) -> None:
    group = Talker.create_group().launch(cluster, placement=NodePlacementStrategy([0, 1]), name="plain").wait_ready()
    group.do(acquire).wait()
    assert held(cluster) == {}
    group.do(release).wait()
    group.close()
