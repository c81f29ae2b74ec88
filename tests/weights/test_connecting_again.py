"""Schemes closed and connected again over the same pipe."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
from typing import Any

import pytest

from rlinf_async import MultiProcessWeightSyncScheme, SharedMemWeightSyncScheme
from rlinf_async.errors import DeadlineExceeded
from tests.weights.ends import Tied

KINDS = [MultiProcessWeightSyncScheme, SharedMemWeightSyncScheme]


class Ends:
    """Both, over one pipe, to be begun again and again."""

    def __init__(self, kind: Any, pipes: Any) -> None:
        self.source, self.model = Tied(1.0), Tied()
        self.sending, self.receiving = kind(), kind()
        self._pipes = pipes

    def begin(self) -> None:
        self.sending.init_on_sender("policy", pipes=[self._pipes[0]], source_model=self.source)
        self.receiving.init_on_worker("policy", pipe=self._pipes[1], model=self.model)

    async def synchronise(self, value: float) -> None:
        self.begin()
        await asyncio.gather(self.sending.connect(timeout=20), self.receiving.connect(timeout=20))
        serving = self.receiving.get_receiver().serve()
        self.source.fill(value)
        await self.sending.get_sender().send(timeout=20)
        assert self.model.values() == {value}
        serving.cancel()
        await asyncio.wait([serving])


@pytest.mark.parametrize("kind", KINDS)
async def test_both_sides_may_be_closed_in_any_order_and_connect_again(kind: Any) -> None:
    with (pipes := multiprocessing.Pipe())[0], pipes[1]:
        ends = Ends(kind, pipes)
        await ends.synchronise(2.0)
        await ends.sending.close()
        await ends.receiving.close()
        await ends.synchronise(3.0)
        await ends.receiving.close()
        await ends.sending.close()
        await ends.synchronise(4.0)
        await asyncio.gather(ends.sending.close(), ends.receiving.close())
        await ends.synchronise(5.0)
        await ends.receiving.close()
        await ends.sending.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_what_a_sender_said_that_has_given_up_means_nothing_to_a_receiver_that_comes_later(kind: Any) -> None:
    with (pipes := multiprocessing.Pipe())[0], pipes[1]:
        ends = Ends(kind, pipes)
        ends.begin()
        with pytest.raises(DeadlineExceeded):
            await ends.sending.connect(timeout=0.05)
        await ends.sending.close()
        await ends.receiving.close()
        await ends.synchronise(2.0)
        await ends.sending.close()
        await ends.receiving.close()


async def test_a_receiver_that_only_receives_hears_a_sender_that_was_there_again_first() -> None:
    with (pipes := multiprocessing.Pipe())[0], pipes[1]:
        ends = Ends(MultiProcessWeightSyncScheme, pipes)
        await ends.synchronise(2.0)
        await ends.sending.close()
        ends.sending.init_on_sender("policy", pipes=[pipes[0]], source_model=Tied(3.0))
        sender = ends.sending.get_sender()
        sent = sender.send(timeout=20)
        while not pipes[1].poll(0):
            await asyncio.sleep(0)
        await ends.receiving.close()
        ends.receiving.init_on_worker("policy", pipe=pipes[1], model=ends.model)
        assert await ends.receiving.get_receiver().receive(timeout=20)
        await sent
        assert ends.model.values() == {3.0}
        await ends.sending.close()
        await ends.receiving.close()


@pytest.mark.parametrize("side", ["sending", "receiving"])
def test_a_process_that_is_forked_closes_its_copy_of_a_side_and_both_go_on(side: str) -> None:
    with (pipes := multiprocessing.Pipe())[0], pipes[1]:
        ends = Ends(MultiProcessWeightSyncScheme, pipes)
        ends.begin()
        sender, receiver = ends.sending.get_sender(), ends.receiving.get_receiver()
        connecting = threading.Thread(target=ends.sending.connect, kwargs={"timeout": 20})
        connecting.start()
        ends.receiving.connect(timeout=20)
        connecting.join(20)
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            code = 1
            try:
                getattr(ends, side).close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        ends.source.fill(2.0)
        receiving = threading.Thread(target=receiver.receive, args=(20,))
        receiving.start()
        sender.send(timeout=20)
        receiving.join(20)
        assert ends.model.values() == {2.0}
        ends.sending.close()
        ends.receiving.close()
