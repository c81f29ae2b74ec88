"""Orderly ends of workers: hooks, objects, threads, exit functions, files, shared memory; and ends that are cut off."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import pytest
import torch

from rlinf_async import Cluster, NodePlacementStrategy, Worker, WorkerGroup

pytestmark = pytest.mark.shared_cluster

ONE = NodePlacementStrategy([0])


def note(path: str, line: str) -> None:
    with open(path, "a") as file:
        file.write(f"{line}\n")


class Mortal:
    def __init__(self, path: str, name: str) -> None:
        self._path, self._name = path, name

    def __del__(self) -> None:
        note(self._path, self._name)


class Program(Worker):
    """A worker with all that a program may have for its end."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.path = f"{folder}/notes"
        self.file = open(f"{folder}/attribute", "w")  # noqa: SIM115
        self.file.write("kept")
        self.myself = self  # a circle: the collector's
        self.mortal = Mortal(self.path, "attribute of the worker deleted")
        main = sys.modules["__main__"]
        main.file = open(f"{folder}/main", "w")  # type: ignore[attr-defined]  # noqa: SIM115
        main.file.write("kept")
        main.mortal = Mortal(self.path, "attribute of the script deleted")  # type: ignore[attr-defined]
        global module_file
        module_file = open(f"{folder}/module", "w")  # noqa: SIM115
        module_file.write("kept")
        atexit.register(self.finish_late, self.path)
        pool = ThreadPoolExecutor(1)
        pool.submit(time.sleep, 0.3)
        pool.submit(note, self.path, "work of a pool done")

    @staticmethod
    def finish_late(path: str) -> None:
        time.sleep(2.5)  # more than all had before
        note(path, "exit function done")

    async def on_close(self) -> None:
        note(self.path, "on_close called")


class PlainHook(Program):
    def on_close(self) -> None:  # type: ignore[override]
        note(self.path, "on_close called")


@pytest.mark.parametrize("kind", [Program, PlainHook])
def test_a_worker_ends_as_a_program_does(cluster: Cluster, tmp_path: Path, kind: type[Program]) -> None:
    group = kind.create_group(str(tmp_path)).launch(cluster, placement=ONE, name="program")
    group.wait_ready()
    group.close()
    assert (tmp_path / "notes").read_text().splitlines() == [
        "on_close called",
        "attribute of the worker deleted",
        "work of a pool done",
        "exit function done",
        "attribute of the script deleted",
    ]
    assert [(tmp_path / name).read_text() for name in ("attribute", "main", "module")] == ["kept"] * 3


class Late(Worker):
    """Never ends in order."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where
        if where == "exit function":
            atexit.register(sleep_for_ever)
        if where == "thread":
            threading.Thread(target=sleep_for_ever).start()

    def hold(self) -> None:
        sys.stderr.write("holding\n")
        sleep_for_ever()

    def on_close(self) -> None:
        if self.where == "hook":
            sleep_for_ever()
        if self.where == "bad hook":
            raise ValueError("this hook is bad")


def sleep_for_ever() -> None:
    time.sleep(600)


@pytest.mark.parametrize(
    ("where", "within", "says"),
    [
        ("call", 1.7, "in hold"),
        ("hook", 2.0, "in on_close"),
        ("exit function", 2.0, "in sleep_for_ever"),
        ("thread", 2.0, "in sleep_for_ever"),
        ("bad hook", 1.0, "ValueError: this hook is bad"),
        ("stopped", 1.7, ""),
    ],
)
def test_whatever_does_not_end_is_cut_off_and_named_with_its_stack(
    cluster: Cluster, where: str, within: float, says: str
) -> None:
    group = Late.create_group(where).launch(cluster, placement=ONE, name=where, close_grace=2.0)
    group.wait_ready()
    log, pid = Path(group.log_paths[0]), group.worker_info_list[0].worker.pid
    if where == "call":
        group.hold()
        while "holding" not in log.read_text():
            os.sched_yield()
    if where == "stopped":
        os.kill(pid, signal.SIGSTOP)
    since = time.monotonic()
    group.close()
    assert time.monotonic() - since < within + 0.9
    assert says in log.read_text()
    assert (f"worker {where}:0 is cut off at its end" in log.read_text()) is (where not in ("bad hook", "stopped"))


def test_a_grace_that_cannot_be_is_refused(cluster: Cluster) -> None:
    with pytest.raises(ValueError, match="close_grace must be between 0 and 86400 seconds, got -1"):
        Late.create_group("").launch(cluster, placement=ONE, close_grace=-1)


class Sharing(Worker):
    def share(self) -> list[str]:
        self.memory = shared_memory.SharedMemory(create=True, size=1 << 12)
        torch.multiprocessing.set_sharing_strategy("file_system")
        before = set(os.listdir("/dev/shm"))
        self.tensor = torch.zeros(1000).share_memory_()
        torch.multiprocessing.set_sharing_strategy("file_descriptor")
        return [self.memory.name, *(set(os.listdir("/dev/shm")) - before)]


@pytest.mark.parametrize("how", ["close", "kill"])
def test_shared_memory_ends_with_its_worker(cluster: Cluster, how: str) -> None:
    group: WorkerGroup[Any] = Sharing.create_group().launch(cluster, placement=ONE, name="sharing")
    (names,) = group.share().wait()
    assert len(names) == 2
    assert set(names) <= set(os.listdir("/dev/shm"))
    if how == "kill":
        os.kill(group.worker_info_list[0].worker.pid, signal.SIGKILL)
    group.close()
    assert not set(names) & set(os.listdir("/dev/shm"))
