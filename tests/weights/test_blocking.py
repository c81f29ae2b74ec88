"""Blocking use in plain scripts: threads do not block each other, nor a forked child."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import warnings

import pytest

from rlinf_async import WorkerWeightSyncScheme
from tests._support.forked_children import exit_code, forked
from tests._support.weight_parts import SyncAdapter
from tests.weights.ends import Tied


def test_one_thread_waits_for_the_version_that_another_one_brings() -> None:
    scheme = WorkerWeightSyncScheme()
    scheme.init_on_worker("policy", model=Tied())
    receiver = scheme.get_receiver()
    waiting = threading.Thread(target=receiver.wait_version, args=(1, 20))
    waiting.start()
    bringing = threading.Thread(target=receiver.apply_weights, args=(Tied(1.0).state_dict(),))
    bringing.start()
    bringing.join(10)
    waiting.join(10)
    assert not bringing.is_alive()
    assert not waiting.is_alive()
    assert receiver.version == 1
    scheme.close()


async def _woken_by_a_thread() -> bool:
    loop, woken = asyncio.get_running_loop(), asyncio.Event()
    thread = threading.Thread(target=lambda: loop.call_soon_threadsafe(woken.set))
    timer = threading.Timer(0.05, thread.start)
    timer.start()
    try:
        async with asyncio.timeout(5):
            await woken.wait()
    finally:
        timer.join()
        thread.join()
    return True


@pytest.mark.parametrize("how", ["lets go of it", "ends it", "uses it"])
def test_a_forked_process_leaves_its_parents_loop_alone(how: str) -> None:
    bridges = [SyncAdapter()]
    assert bridges[0].run(_woken_by_a_thread(), "once")
    child = os.fork()
    if child == 0:
        ok = True
        try:
            if how == "lets go of it":
                bridges.clear()
                gc.collect()
            elif how == "ends it":
                bridges[0].release()
            else:
                ok = bridges[0].run(_woken_by_a_thread(), "in the child")
                bridges[0].release()
        finally:
            os._exit(0 if ok else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert bridges[0].run(_woken_by_a_thread(), "again")
    bridges[0].release()


def test_a_loop_that_was_given_back_is_dropped_by_a_forked_process_without_a_word() -> None:
    bridges = [SyncAdapter()]
    assert bridges[0].run(_woken_by_a_thread(), "once")
    bridges[0].release()

    def drop() -> None:
        told: list[object] = []
        sys.unraisablehook = told.append
        bridges.clear()
        gc.collect()
        assert not told, told

    with forked(drop) as child:
        assert exit_code(child) == 0


async def test_a_loop_that_is_dropped_in_a_coroutine_is_closed_without_a_word() -> None:
    bridges, loops = [SyncAdapter()], []

    async def look() -> None:
        loops.append(asyncio.get_running_loop())

    await asyncio.to_thread(lambda: bridges[0].run(look(), "once"))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        bridges.clear()
        gc.collect()
    assert not told, [str(each.message) for each in told]
    assert loops[0].is_closed()
