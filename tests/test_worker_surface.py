"""RLinf's attributes and methods of a worker, on a cluster that declares two nodes of eight GPUs."""

from __future__ import annotations

import inspect
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlinf_async import Cluster, NodePlacementStrategy, PackedPlacementStrategy, Worker, WorkerDied, WorkerGroup
from rlinf_async._core import operations
from rlinf_async._worker import context
from tests._support.exchanges import Talker
from tests._support.workers import Plain

pytestmark = pytest.mark.shared_cluster

VARIABLES = (
    "GROUP_NAME WORKER_NAME MASTER_ADDR MASTER_PORT WORLD_SIZE RANK NODE_RANK CLUSTER_NODE_RANK LOCAL_ACCELERATOR_RANK "
    "NODE_LOCAL_RANK NODE_LOCAL_WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE CLUSTER_NAMESPACE CATCH_SYSTEM_FAILURE "
    "VISIBLE_DEVICES ACCELERATOR_TYPE ACCELERATOR_MODEL ISOLATE_ACCELERATOR LOCAL_HARDWARE_RANKS NODE_GROUP_LABEL"
)

ATTRIBUTES = (
    "_rank _world_size _group_name _worker_name _cluster_node_rank _node_local_rank _node_local_world_size _local_rank "
    "_local_world_size _local_accelerator_rank _accelerator_type _master_address _master_port _node_group "
    "_isolate_gpu global_accelerator_ids has_accelerator"
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(num_nodes=2, local_nodes=2, fake_gpus=8, log_to_driver=False) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def actor(cluster: Cluster) -> Iterator[Any]:
    """Four workers of two GPUs each: two on the last GPUs of node 0, two on node 1."""
    group = Talker.create_group().launch(
        cluster, placement=PackedPlacementStrategy(4, 11, num_hardware_per_process=2), name="actor"
    )
    yield group
    group.close()


def attributes(worker: Worker) -> dict[str, Any]:
    found = {name: getattr(worker, name) for name in ATTRIBUTES.split()}
    found["current"] = Worker.current_worker is worker and worker.PID == Worker.PID == os.getpid()
    found["address"] = worker.worker_address.get_name()
    found["lock"] = worker._lock.acquire(blocking=False) and worker._lock.release() is None
    return found


def test_a_worker_has_the_attributes_that_say_who_it_is(actor: Any) -> None:
    found = actor.do(attributes).wait()
    last = found[3]
    assert last.pop("_master_address") == "127.0.0.1"
    assert last.pop("_master_port") > 1023
    assert last == {
        "_rank": 3,
        "_world_size": 4,
        "_group_name": "actor",
        "_worker_name": "actor:3",
        "_cluster_node_rank": 1,
        "_node_local_rank": 1,
        "_node_local_world_size": 2,
        "_local_rank": 0,
        "_local_world_size": 1,
        "_local_accelerator_rank": 2,
        "_accelerator_type": "NV_GPU",
        "_node_group": "cluster",
        "_isolate_gpu": True,
        "global_accelerator_ids": [10, 11],
        "has_accelerator": False,  # it is only declared
        "current": True,
        "address": "actor:3",
        "lock": True,
    }
    assert [facts["global_accelerator_ids"] for facts in found] == [[4, 5], [6, 7], [8, 9], [10, 11]]
    assert actor.get_name().wait() == [f"actor:{rank}" for rank in range(4)]
    assert actor.get_parent_rank().wait() == [0] * 4


def variables(worker: Worker) -> dict[str, str]:
    return {name: os.environ[name] for name in VARIABLES.split() if name in os.environ}


def test_a_worker_has_every_variable_of_rlinf_but_rays(actor: Any) -> None:
    found = actor.do(variables).wait()
    assert all(set(each) == set(VARIABLES.split()) for each in found)
    assert [each["RANK"] for each in found] == ["0", "1", "2", "3"]
    assert [each["VISIBLE_DEVICES"] for each in found] == ["4,5", "6,7", "0,1", "2,3"]
    assert len({(each["MASTER_ADDR"], each["MASTER_PORT"]) for each in found}) == 1


def test_a_worker_is_alive_until_it_is_not(cluster: Cluster, actor: Any) -> None:
    group = Talker.create_group().launch(cluster, placement=NodePlacementStrategy([0, 1]), name="mortal").wait_ready()
    assert Worker.check_worker_alive("mortal:1")
    assert actor.do(ask_for, "mortal:1").wait() == [True] * 4
    assert actor.ado(await_answer, "mortal:0").wait() == [True] * 4
    with pytest.raises(WorkerDied):
        group.execute_on(1).do(kill_yourself).wait()
    assert actor.do(ask_for, "mortal:1").wait() == [False] * 4
    assert actor.do(ask_for, "mortal:0").wait() == [True] * 4
    assert actor.do(ask_for, "mortal:7").wait() == [False] * 4
    group.close()
    assert actor.do(ask_for, "mortal:0").wait() == [False] * 4
    assert not Worker.check_worker_alive("nobody:0")
    with pytest.raises(ValueError, match="is no worker's name: those are group:rank"):
        Worker.check_worker_alive("mortal")


def ask_for(worker: Worker, name: str) -> bool:
    return bool(worker.check_worker_alive(name))


async def await_answer(worker: Worker, name: str) -> bool:
    return bool(await worker.check_worker_alive(name))


def kill_yourself(worker: Worker) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def log_everything(worker: Worker) -> int:
    worker.log_debug("a detail")
    worker.log_info("some information")
    worker.log_warning("a warning")
    worker.log_error("an error")
    worker.log_on_first_rank("the first")
    worker.log_on_last_rank("the last")
    Worker.logger.info("by the class's logger")
    frame = inspect.currentframe()
    assert frame is not None
    return frame.f_code.co_firstlineno


@pytest.mark.parametrize(
    ("level", "first"), [("debug", "DEBUG"), ("WARNING", "WARNING"), ("loud", "INFO"), (None, "INFO")]
)
def test_lines_say_level_time_rank_and_place(cluster: Cluster, level: str | None, first: str) -> None:
    env = {} if level is None else {"RLINF_LOG_LEVEL": level}
    group = Talker.create_group().launch(cluster, placement=NodePlacementStrategy([0, 0]), name=f"log-{level}", env=env)
    line = group.do(log_everything).wait()[0]
    outputs = [Path(path).with_suffix(".out") for path in group.log_paths]
    group.close()
    said = ["DEBUG a detail", "INFO some information", "WARNING a warning", "ERROR an error"]
    for rank, output in enumerate(outputs):
        lines = dict(zip(said, range(line + 1, line + 5), strict=True))
        lines["INFO the last" if rank else "INFO the first"] = line + 5 + rank
        lines["INFO by the class's logger"] = line + 7
        severities = ["DEBUG", "INFO", "WARNING", "ERROR"]
        expected = {
            text: f"[test_worker_surface.py:{number}"
            for text, number in lines.items()
            if severities.index(text.split()[0]) >= severities.index(first)
        }
        found = {}
        for text in output.read_text().splitlines():
            assert re.match(rf"\[[A-Z]+ \d\d:\d\d:\d\d log-{level}-Rank-{rank}\]\[[a-z_]+\.py:\d+\] ", text), text
            head, place, message = text.removeprefix("[").split("]", 2)
            if level != "loud" or "RLINF_LOG_LEVEL=loud is no level" not in message:
                found[f"{head.split()[0]}{message}"] = place
        assert found == expected


def test_a_group_is_found_by_its_name_and_all_its_ranks_can_be_called(cluster: Cluster) -> None:
    group = Plain.create_group(2).launch(cluster, placement=NodePlacementStrategy([0, 1, 1]), name="known")
    found = WorkerGroup.from_group_name(Plain, "known", cluster=cluster)
    assert found.hello().wait() == [0, 1, 2]
    assert found.execute_on(2).scaled(3).wait() == [6]
    assert (found.worker_cls_name, found.worker_group_name) == ("Plain", "known")
    assert [entry.rank for entry in found.worker_info_list] == [0, 1, 2]
    infos = [entry.worker for entry in found.worker_info_list]
    assert [info.address.get_name() for info in infos] == ["known:0", "known:1", "known:2"]
    assert [info.cluster_node_rank for info in infos] == [0, 1, 1]
    assert [info.pid for info in infos] == group.pid().wait()
    assert infos == [entry.worker for entry in group.worker_info_list]
    group._close()
    assert not Worker.check_worker_alive("known:0")


def find_and_call(worker: Worker) -> Any:
    return WorkerGroup.from_group_name(Plain, "late").hello().wait()


def test_a_group_that_is_launched_later_is_waited_for(cluster: Cluster, actor: Any) -> None:
    finding = actor.do(find_and_call)
    group = Plain.create_group().launch(cluster, placement=NodePlacementStrategy([1, 1]), name="late")
    assert finding.wait(20) == [[0, 1]] * 4
    group.close()


def share_devices(worker: Talker) -> bool:
    with worker.device_lock:
        return worker.device_lock.is_held


def test_workers_on_the_same_devices_take_turns(cluster: Cluster, actor: Any) -> None:
    rollout = Talker.create_group().launch(cluster, placement=PackedPlacementStrategy(4, 7), name="rollout")
    actor.execute_on(1).do(hold).wait()
    first, second, third, fourth = (rollout.execute_on(rank).do(share_devices) for rank in range(4))
    assert first.wait(10) == second.wait(10) == [True]  # on 4 and 5
    assert not third.done()
    assert not fourth.done()  # on 6 and 7, which actor:1 has
    actor.execute_on(1).do(let_go).wait()
    assert third.wait(10) == fourth.wait(10) == [True]
    rollout.close()


def hold(worker: Talker) -> None:
    worker.device_lock.acquire()


def let_go(worker: Talker) -> None:
    worker.device_lock.release()


@pytest.mark.parametrize(("asked", "variable", "shown"), [(True, None, True), (None, "1", True), (False, "1", False)])
def test_a_worker_that_catches_system_failures_shows_its_stacks_when_a_signal_ends_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, asked: bool | None, variable: str | None, shown: bool
) -> None:
    if variable is not None:
        monkeypatch.setenv("RLINF_CATCH_FAILURE", variable)
    group = Plain.create_group().launch(
        cluster, placement=NodePlacementStrategy([0]), name="caught", catch_system_failure=asked
    )
    with pytest.raises(WorkerDied, match="SIGTERM") as caught:
        group.die([0], "SIGTERM").wait()
    assert ("in die" in str(caught.value)) == shown
    group.close()


def stderr_after_a_childs_output(worker: Worker) -> list[str]:
    subprocess.run(["sh", "-c", "echo from a child >&2"], check=True)
    return context.require_client().request(operations.ReadStderr(), what="stderr").wait()


def test_a_worker_reads_what_its_children_wrote_to_stderr(actor: Any) -> None:
    assert [lines[-1] for lines in actor.do(stderr_after_a_childs_output).wait()] == ["from a child"] * 4
