"""Subprocesses of workers that join as workers: exchanges, deaths, cleanup."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from typing import Any

import psutil
import pytest
import torch

from rlinf_async import Cluster, NodePlacementStrategy, Worker, WorkerAddress, WorkerDied, WorkerGroup
from tests._support.exchanges import Talker
from tests._support.until import until
from tests._support.workers import OVERWRITE_ENVIRONMENT, Plain

pytestmark = pytest.mark.shared_cluster
LOCAL_NODES = 2


class Sub(Worker):
    """As an inference engine's scheduler: its constructor has arguments of its own."""

    def __init__(self, parent_address: WorkerAddress, name: str, world_size: int, rank: int) -> None:
        Worker.__init__(self, parent_address=parent_address, world_size=world_size, rank=rank)
        self.name = name


def be_sub(parent: WorkerAddress, world_size: int, rank: int) -> None:
    """The life of such a process: it does what it is told, until it is told nothing."""
    worker = Sub(parent, "engine", world_size, rank)
    while (order := worker.recv("boss", 0)) is not None:
        function, args = order
        worker.send(function(worker, *args), "boss", 0)


class Brood(Talker):
    """Starts subprocesses."""

    def __init__(self) -> None:
        super().__init__()
        self.processes: dict[int, BaseProcess] = {}

    def breed(self, ranks: list[int], world_size: int, method: str = "fork") -> list[int]:
        for rank in ranks:
            context = multiprocessing.get_context(method)
            process = context.Process(target=be_sub, args=(self.worker_address, world_size, rank))  # type: ignore[attr-defined]
            process.start()
            self.processes[rank] = process
        return [self.processes[rank].pid or 0 for rank in ranks]

    def join(self) -> list[int | None]:
        for process in self.processes.values():
            process.join()
        return [process.exitcode for process in self.processes.values()]


def tell(boss: Worker, parent: int, rank: int, function: Any, *args: Any) -> Any:
    """Has a subprocess of a worker of ``brood`` do something."""
    boss.send((function, args), "brood", [parent, rank])
    return boss.recv("brood", [parent, rank])


def dismiss(boss: Worker, parent: int, ranks: list[int]) -> None:
    for rank in ranks:
        boss.send(None, "brood", [parent, rank])


@pytest.fixture(scope="module")
def boss(cluster: Cluster) -> Iterator[Any]:
    group = Talker.create_group().launch(cluster, placement=NodePlacementStrategy([0]), name="boss")
    yield group
    group.close()


@pytest.fixture
def brood(cluster: Cluster) -> Iterator[Any]:
    """On the other node."""
    # Python waits at the exit of a worker for its subprocesses, which end only with it: for the whole grace period.
    group = Brood.create_group().launch(cluster, NodePlacementStrategy([1, 1]), name="brood", close_grace=1.0)
    yield group
    group.close()


def who_are_you(worker: Sub) -> Any:
    info = worker.worker_info
    same = Worker.current_worker is worker and worker.name == "engine"
    return worker.get_name(), worker._rank, worker._world_size, worker.get_parent_rank(), info.pid, info.node_name, same


@pytest.mark.parametrize("method", [pytest.param("spawn", marks=pytest.mark.slow), "fork"])
def test_a_subprocess_is_a_worker_below_its_parent(boss: Any, brood: Any, method: str) -> None:
    pids = brood.execute_on(1).breed([0, 1], 2, method).wait()[0]
    for rank in (0, 1):
        facts = boss.do(tell, 1, rank, who_are_you).wait(30)[0]
        assert facts == (f"brood:1:{rank}", rank, 2, 1, pids[rank], "local-1", True)
    boss.do(dismiss, 1, [0, 1]).wait()
    assert brood.execute_on(1).join().wait(10) == [[0, 0]]


def send_to_sibling(worker: Sub) -> float:
    other = 1 - worker._rank
    sending = worker.send(torch.full((1 << 18,), float(worker._rank)), "brood", [0, other], async_op=True)
    received = worker.recv("brood", [0, other])
    sending.wait()
    return float(received.sum())


def broadcast_from_boss(worker: Worker, value: Any = None) -> Any:
    return worker.broadcast(value, groups=[("boss", 0), ("brood", [(0, 0), (0, 1)])], src=("boss", 0))


def give_orders(boss: Worker, function: Any) -> None:
    for rank in (0, 1):
        boss.send((function, ()), "brood", [0, rank])


def collect(boss: Worker) -> list[Any]:
    return [boss.recv("brood", [0, rank]) for rank in (0, 1)]


def test_the_ranks_of_an_address_are_whole_numbers() -> None:
    assert WorkerAddress("brood", True).get_name() == "brood:1"
    for ranks in ("12", [1.5]):
        with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
            WorkerAddress("brood", ranks)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="'<' not supported"):
        assert WorkerAddress("brood") < 5  # type: ignore[operator]


def test_siblings_and_others_exchange_tensors_and_broadcast(boss: Any, brood: Any) -> None:
    brood.execute_on(0).breed([0, 1], 2).wait()
    boss.do(give_orders, send_to_sibling).wait(30)
    assert boss.do(collect).wait(30) == [[float(1 << 18), 0.0]]
    boss.do(give_orders, broadcast_from_boss).wait(30)
    assert boss.do(broadcast_from_boss, [1, 2]).wait(30) == [[1, 2]]
    assert boss.do(collect).wait(30) == [[[1, 2], [1, 2]]]
    boss.do(dismiss, 0, [0, 1]).wait()
    brood.execute_on(0).join().wait(10)


def end_yourself(worker: Sub, how: str) -> None:
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.stderr.write("last words of a subprocess\n")
    sys.stderr.flush()
    os._exit(3)


@pytest.mark.parametrize(("how", "verdict"), [("kill", "was killed by SIGKILL"), ("exit", "exited with code 3")])
def test_the_death_of_one_is_told_to_whoever_waits_for_it_and_its_place_is_free(
    cluster: Cluster, boss: Any, brood: Any, how: str, verdict: str
) -> None:
    brood.execute_on(0).breed([0, 1], 2).wait()
    with pytest.raises(WorkerDied, match=rf"rank 1 of group 'brood:0' on local-1 \(pid \d+\) ({verdict}|has ended)"):
        boss.do(tell, 0, 1, end_yourself, how).wait(30)
    assert boss.do(tell, 0, 0, who_are_you).wait(30)[0][0] == "brood:0:0"  # the other one lives
    assert brood.do(Talker.get_name).wait() == ["brood:0", "brood:1"]
    brood.execute_on(0).breed([1], 2).wait()
    assert boss.do(tell, 0, 1, who_are_you).wait(30)[0][0] == "brood:0:1"
    assert cluster.status(0)["names"] == ["boss", "brood", "brood:0"]


def take_everything(worker: Sub) -> int:
    worker.global_accelerator_ids = [0]
    worker.device_lock.acquire()
    return int(worker.acquire_free_port())


@pytest.mark.parametrize("how", ["close", "kill the parent"])
def test_subprocesses_end_with_their_parent_and_nothing_of_them_is_left(
    cluster: Cluster, boss: Any, brood: Any, how: str
) -> None:
    pids = brood.execute_on(0).breed([0, 1], 2).wait()[0]
    port = boss.do(tell, 0, 1, take_everything).wait(30)[0]
    assert (cluster.status(0)["devices"], cluster.status(1)["ports"]) == ({"brood:0:1": [0]}, [port])
    if how == "close":
        brood.close()
    else:
        with pytest.raises(WorkerDied):
            brood.execute_on(0).do(kill_yourself).wait()
    until(lambda: not any(psutil.pid_exists(pid) for pid in pids))
    until(lambda: "brood:0" not in cluster.status(0)["names"] and not cluster.status(0)["devices"])
    until(lambda: not cluster.status(1)["ports"])
    brood.close()
    until(lambda: cluster.status(1)["endpoints"] == 0)


def kill_yourself(worker: Worker) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def join_unseen(worker: Brood) -> str:
    script = (
        "import os\n"
        "if os.fork(): os._exit(0)\n"
        "os.setsid()\n"
        f"{OVERWRITE_ENVIRONMENT}\n"
        "from rlinf_async import Worker, WorkerAddress\n"
        "me = Worker(parent_address=WorkerAddress.from_name('brood:0'), world_size=1, rank=0)\n"
        "print(me.get_name(), open('/proc/self/environ').read().count('='))"
    )
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)
    return process.stdout + process.stderr


def test_a_process_that_nothing_but_its_parents_tells_joins(brood: Any) -> None:
    assert brood.execute_on(0).do(join_unseen).wait() == ["brood:0:0 0\n"]


def daemonise(worker: Brood) -> int:
    """Start a process without environment, in a session of its own, whose parent ends."""
    script = (
        "import os, time\n"
        "if os.fork(): os._exit(0)\n"
        "os.setsid()\n"
        "print(os.getpid(), flush=True)\n"
        "os.close(1)\n"
        "time.sleep(600)"
    )
    return int(subprocess.check_output([sys.executable, "-S", "-c", script], env={}, timeout=30))


def test_a_process_without_environment_ends_with_its_own_worker_alone(brood: Any) -> None:
    mine, other = brood.do(daemonise).wait()
    with pytest.raises(WorkerDied):
        brood.execute_on(1).do(kill_yourself).wait()
    until(lambda: not psutil.pid_exists(other))
    assert psutil.pid_exists(mine)
    brood.close()
    assert not psutil.pid_exists(mine)


def join_wrongly(worker: Brood, parent: str, world_size: int, rank: int, clean: bool = False) -> str:
    """What a subprocess says that wants to be who it is not."""
    script = (
        "from rlinf_async import Worker, WorkerAddress\n"
        f"Worker(parent_address=WorkerAddress.from_name({parent!r}), world_size={world_size}, rank={rank})"
    )
    environment = {"PATH": os.environ["PATH"]} if clean else dict(os.environ)
    process = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=30
    )
    return process.stderr.strip().splitlines()[-1]


def test_a_subprocess_cannot_be_who_it_is_not(boss: Any, brood: Any) -> None:
    first = brood.execute_on(0)
    first.breed([0, 1], 2).wait()
    boss.do(tell, 0, 1, who_are_you).wait(30)
    wrong = first.do(join_wrongly, "boss:0", 1, 0).wait()[0]
    assert "AuthError" in wrong
    assert "descends from worker 'brood:0' and wants to be 'boss:0:0'" in wrong
    assert "ValueError: rank 1 of 'brood:0' is there already" in first.do(join_wrongly, "brood:0", 2, 1).wait()[0]
    assert "ValueError: 'brood:0' has 2 members" in first.do(join_wrongly, "brood:0", 3, 2).wait()[0]
    assert "there are 2 below brood:0" in first.do(join_wrongly, "brood:0", 2, 2).wait()[0]
    clean = first.do(join_wrongly, "brood:0", 2, 1, True).wait()[0]
    assert "RuntimeError: You may have mistakenly initialized the Worker class" in clean


def test_a_process_that_no_worker_has_started_is_refused(brood: Any) -> None:
    path = brood.execute_on(0).do(socket_path).wait()[0]
    script = (
        "from rlinf_async import Worker, WorkerAddress\n"
        "Worker(parent_address=WorkerAddress.from_name('brood:0'), world_size=1, rank=0)"
    )
    environment = {**os.environ, "RLINF_PARENT_SOCKET": path}
    process = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=30
    )
    assert "AuthError" in process.stderr
    assert "descends from no worker of node local-1" in process.stderr


def socket_path(worker: Worker) -> str:
    return os.environ["RLINF_PARENT_SOCKET"]


class Late(Exception):
    pass


def join_at_the_second_try(parent: WorkerAddress, daemon: int) -> None:
    def interrupt(*_: Any) -> None:
        os.kill(daemon, signal.SIGCONT)
        raise Late

    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    os.kill(daemon, signal.SIGSTOP)  # of the node that knows all names
    with contextlib.suppress(Late):
        Sub(parent, "engine", 1, 0)
        raise AssertionError("it has joined, and was to be interrupted")
    Sub(parent, "engine", 1, 0)


def breed_late(worker: Brood, daemon: int) -> int | None:
    context = multiprocessing.get_context("fork")
    process = context.Process(target=join_at_the_second_try, args=(worker.worker_address, daemon))
    process.start()
    process.join()
    return process.exitcode


def test_a_process_whose_joining_is_interrupted_can_join_again(cluster: Cluster, brood: Any) -> None:
    daemon = cluster.status(0)["pid"]
    assert brood.execute_on(0).do(breed_late, daemon).wait(30) == [0]


def test_a_worker_cannot_be_a_second_one(brood: Any) -> None:
    with pytest.raises(
        RuntimeError, match="this process is worker brood:0 already: brood:0:0 must be a process of its"
    ):
        brood.execute_on(0).do(be_two).wait()
    with pytest.raises(TypeError, match="parent_address, world_size and rank: all, or none"):
        brood.execute_on(0).do(be_half).wait()


def be_two(worker: Worker) -> None:
    Sub(worker.worker_address, "engine", 1, 0)


def be_half(worker: Worker) -> None:
    Worker(rank=0)


@pytest.mark.slow
def test_the_methods_of_a_subprocess_cannot_be_called(cluster: Cluster, boss: Any, brood: Any) -> None:
    brood.execute_on(0).breed([0, 1], 2).wait()
    group = WorkerGroup.from_group_name(Plain, "brood:0", cluster=cluster)
    assert [info.worker.address.get_name() for info in group.worker_info_list] == ["brood:0:0", "brood:0:1"]
    with pytest.raises(Exception, match="it exchanges messages, and has no methods to call"):
        group.hello().wait(30)
