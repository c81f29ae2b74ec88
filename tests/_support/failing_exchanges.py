"""Functions that workers run in tests of failing exchanges: bad arguments, deadlines, deaths."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from typing import Any

import torch

from tests._support.exchanges import awaited, refused

# -- errors ---------------------------------------------------------------------------------------------------------


def send_tensors_that_do_not_fit(worker: Any, other: str) -> list[str]:
    me = worker._rank
    answers = [
        refused(lambda: worker.send_tensor(torch.ones(2, 3), other, me)),
        refused(lambda: worker.send_tensor(torch.ones(2, 3), other, me)),
        refused(lambda: worker.send_tensor(torch.ones(600_000), other, me)),
    ]
    worker.send("not a tensor of its own", other, me)
    answers.append(refused(lambda: worker.send_tensor(torch.ones(3), other, me)))
    worker.send("and so on", other, me)
    return answers


def recv_tensors_that_do_not_fit(worker: Any, other: str) -> list[str]:
    me = worker._rank
    answers = [
        refused(lambda: worker.recv_tensor(torch.ones(3, 2), other, me)),
        refused(lambda: worker.recv_tensor(torch.ones(2, 3, dtype=torch.int32), other, me)),
        refused(lambda: worker.recv_tensor(torch.ones(600_001), other, me)),
        refused(lambda: worker.recv_tensor(torch.ones(3), other, me)),
        refused(lambda: worker.recv(other, me)),
    ]
    return [*answers, worker.recv(other, me)]


def ask_a_group_that_there_is_not(worker: Any) -> list[str]:
    return [
        refused(lambda: worker.recv("nobody", 0, timeout=0.1)),
        refused(lambda: worker.send(1, "nobody", 3, timeout=0.1)),
        refused(lambda: worker.broadcast(1, [(worker._group_name, [0, 1]), ("nobody", 0)], timeout=0.1)),
    ]


def send_what_cannot_be_sent(worker: Any, other: str) -> list[str]:
    strided = torch.ones(4, 4).t()[1:]
    return [
        refused(lambda: worker.send_tensor(strided, other, 0)),
        refused(lambda: worker.send_tensor([1, 2], other, 0)),
        refused(lambda: worker.recv_tensor("text", other, 0)),
        refused(lambda: worker.send({"lock": threading.Lock()}, other, 0)),
        refused(lambda: worker.send(1, other, 99)),
        refused(lambda: worker.recv(other, [])),
        refused(lambda: worker.recv(other, "0")),
        refused(lambda: worker.recv(7, 0)),
        refused(lambda: worker.recv(other, 0, options="fast")),
        refused(lambda: worker.recv(other, 0, timeout=-1)),
    ]


# -- cancelling and deadlines ------------------------------------------------------------------------------------------


async def give_up_and_receive(worker: Any, other: str) -> list[Any]:
    """Two receives that are given up, one of them while another one waits; then what was sent meanwhile."""
    first = asyncio.create_task(awaited(worker.recv(other, worker._rank)))
    second = worker.recv(other, worker._rank)
    await asyncio.sleep(0)
    first.cancel()
    late = await asyncio.gather(worker.recv(other, worker._rank, timeout=0.05), return_exceptions=True)
    await worker.send("go", other, worker._rank)
    return [f"{type(late[0]).__name__}: {late[0]}", await second, float((await worker.recv(other, worker._rank)).sum())]


def send_two_when_told(worker: Any, other: str) -> None:
    worker.recv(other, worker._rank)
    worker.send("first", other, worker._rank)
    worker.send(torch.ones(500_000), other, worker._rank)


async def cancel_at_the_last_moment(worker: Any, group: str, rounds: int) -> list[int]:
    """Each message is cancelled once when it is here and its waiter does not run yet; none is lost."""
    got = []
    for number in range(rounds):
        task = asyncio.create_task(awaited(worker.recv(group, worker._rank)))
        await asyncio.sleep(0)
        await worker.send(number, group, worker._rank)
        task.cancel() if number % 2 else None
        results = await asyncio.gather(task, return_exceptions=True)
        got.append(await worker.recv(group, worker._rank) if isinstance(results[0], BaseException) else results[0])
    return got


def send_beyond_the_room(worker: Any, other: str) -> list[Any]:
    """64 MiB in pieces are accepted by somebody who has asked for nothing; more is not, and is never sent."""
    piece = torch.ones(4 << 20)  # 16 MiB
    for _ in range(4):
        worker.send(piece, other, worker._rank)
    answers = [
        refused(lambda: worker.send(piece, other, worker._rank, timeout=0.1)),
        refused(lambda: worker.send(torch.ones(20 << 20), other, worker._rank, timeout=0.1)),
    ]
    work = worker.send("afterwards", other, worker._rank, async_op=True)
    answers.append(work.done())
    worker.kept["work"] = work
    return answers


def give_up_sending(worker: Any, other: str) -> str:
    """What is too large to be accepted beforehand; then something small."""
    answer = refused(lambda: worker.send(torch.ones(24 << 20), other, worker._rank, timeout=0.2))
    worker.send("after it", other, worker._rank)
    return answer.partition(":")[0]


class Interrupted(Exception):
    """What a signal's handler raises."""


def be_interrupted_and_receive(worker: Any, other: str) -> list[Any]:
    """Two receives that a signal ends; then what is sent to the one that follows."""

    def raise_it(number: int, frame: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, raise_it)
    ended = []
    for _ in range(2):
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        try:
            worker.recv(other, worker._rank)
        except Interrupted:
            ended.append("interrupted")
    signal.signal(signal.SIGUSR1, before)
    worker.send("go", other, worker._rank)
    return [*ended, worker.recv(other, worker._rank), float(worker.recv(other, worker._rank).sum())]


def sum_up(worker: Any, other: str, count: int) -> list[Any]:
    got = [worker.recv(other, worker._rank) for _ in range(count)]
    return [float(each.sum()) if isinstance(each, torch.Tensor) else each for each in got]


# -- death -------------------------------------------------------------------------------------------------------------


async def wait_for_the_dead(worker: Any, other: str, rank: int) -> tuple[int, list[str], float]:
    """A hundred operations that are pending when the other one dies; how many failed, how, and when."""
    large = torch.ones(18 << 20)
    works = [worker.recv(other, rank) for _ in range(50)] + [worker.send(large, other, rank) for _ in range(50)]
    tasks = [asyncio.create_task(awaited(work)) for work in works]
    await asyncio.sleep(0)
    worker.kept["waiting"] = True
    errors = await asyncio.gather(*tasks, return_exceptions=True)
    now = time.time()
    kinds = {f"{type(error).__name__}: {error}".partition("\n")[0] for error in errors}
    return len(errors), sorted(kinds), now


async def is_waiting(worker: Any) -> bool:
    return "waiting" in worker.kept


def pid(worker: Any) -> int:
    return os.getpid()


def kill(worker: Any, pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def echo_one(worker: Any, other: str) -> None:
    worker.send(worker.recv(other, worker._rank), other, worker._rank)


def say_and_hear(worker: Any, other: str, nbytes: int) -> int:
    worker.send(torch.ones(nbytes, dtype=torch.uint8), other, worker._rank)
    return int(worker.recv(other, worker._rank).nbytes)


def send_without_waiting(worker: Any, other: str, nbytes: int) -> None:
    worker.kept["sending"] = worker.send(torch.ones(nbytes, dtype=torch.uint8), other, worker._rank, async_op=True)


def receive_and_keep(worker: Any, other: str) -> int:
    worker.kept["got"] = worker.recv(other, worker._rank)
    return int(worker.kept["got"].nbytes)


def send_blank_in_time(worker: Any, other: str, nbytes: int, seconds: float) -> str:
    tensor = torch.empty(nbytes, dtype=torch.uint8)
    return refused(lambda: worker.send(tensor, other, worker._rank, timeout=seconds))


def fail_to_receive(worker: Any, other: str, rank: int) -> str:
    return refused(lambda: worker.recv(other, rank))


def receive_in_time(worker: Any, other: str, seconds: float) -> str:
    return refused(lambda: worker.recv(other, worker._rank, timeout=seconds))


def fail_to_broadcast(worker: Any, groups: list[tuple[str, Any]]) -> str:
    return refused(lambda: worker.broadcast("never", groups))


def modules(worker: Any) -> list[str]:
    return list(sys.modules)
