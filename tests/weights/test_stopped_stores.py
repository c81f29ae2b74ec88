"""Stopped and unreachable stores: only their callers are held up."""

from __future__ import annotations

import asyncio
import signal
import threading
from typing import Any

import pytest
import torch
from torch.distributed import DistStoreError, TCPStore  # type: ignore[attr-defined]  # torch does not list them

from rlinf_async import DistributedWeightSyncScheme
from rlinf_async.errors import DeadlineExceeded
from rlinf_async.weights.transports import distributed
from tests.weights.children import child

pytestmark = pytest.mark.usefixtures("fork_server")


class Stopping:
    """A store, and whether it answers; torch's own lets nobody go either once it has stopped, whatever the deadline."""

    def __init__(self, store: Any, of: Stopping | None = None) -> None:
        self._store = store
        self._answers = threading.Event() if of is None else of._answers
        self.is_waited_for = threading.Event() if of is None else of.is_waited_for
        self.go_on()

    def go_on(self) -> None:
        self._answers.set()

    def stop(self) -> None:
        self._answers.clear()

    def clone(self) -> Stopping:
        self._pass()
        return Stopping(self._store.clone(), self)

    def check(self, keys: list[str]) -> Any:
        self._pass()
        return self._store.check(keys)

    def get(self, key: str) -> Any:
        self._pass()
        return self._store.get(key)

    def set(self, key: str, value: Any) -> None:
        self._pass()
        self._store.set(key, value)

    def compare_set(self, key: str, expected: str, value: str) -> Any:
        self._pass()
        return self._store.compare_set(key, expected, value)

    def delete_key(self, key: str) -> Any:
        self._pass()
        return self._store.delete_key(key)

    def wait(self, keys: list[str], timeout: Any) -> None:
        self._pass()
        self.is_waited_for.set()
        try:
            self._store.wait(keys, timeout)
        except DistStoreError:
            self._pass()
            raise

    def _pass(self) -> None:
        if threading.current_thread() is threading.main_thread():
            assert self._answers.is_set(), "the loop asks a store that has stopped"
        assert self._answers.wait(60)


@pytest.mark.parametrize("ends", ["its time is over", "it is cancelled"])
async def test_a_store_that_has_stopped_holds_up_no_loop_no_send_and_no_closing(
    ends: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(distributed, "_CLOSE_TIMEOUT_S", 0.05)
    store = Stopping(TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))
    scheme = DistributedWeightSyncScheme()
    scheme.init_on_sender("policy", store=store, num_workers=1, source_model=torch.nn.Linear(2, 2))
    async with asyncio.timeout(30):
        is_late = ends == "its time is over"
        sending = asyncio.ensure_future(scheme.get_sender().send(timeout=0.5 if is_late else 20.0))
        assert await asyncio.to_thread(store.is_waited_for.wait, 20)
        store.stop()
        if not is_late:
            sending.cancel()
        with pytest.raises(DeadlineExceeded if is_late else asyncio.CancelledError):
            await sending
        await scheme.close()
    assert "is left behind: does the store answer?" in caplog.text
    store.go_on()


def test_blocking_code_waits_no_longer_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "_CLOSE_TIMEOUT_S", 0.05)
    store = Stopping(TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))
    scheme = DistributedWeightSyncScheme()
    scheme.init_on_worker("policy", store=store, rank=1, model=torch.nn.Linear(2, 2))
    assert not scheme.get_receiver().receive(0.01)
    assert store.is_waited_for.wait(20)
    store.stop()
    scheme.close()
    store.go_on()


async def test_a_send_a_closing_and_the_process_itself_end_while_the_host_of_the_store_stands_still() -> None:
    async with (
        child("keep_store", "scheme_child") as keeper,
        child("send", "stopped_store_child", port=await keeper.story()) as sender,
    ):
        assert await sender.story() == "sent"
        keeper.signal(signal.SIGSTOP)
        sender.tell("it has stopped")
        assert await sender.story() == "DeadlineExceeded"
        assert await sender.story() == "closed"
        assert await sender.ended() == 0
