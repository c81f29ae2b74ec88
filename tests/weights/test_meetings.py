"""Closings and new beginnings at every step of a meeting over a pipe: each ends in a version or in a named error."""

from __future__ import annotations

import itertools
import multiprocessing
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rlinf_async import MultiProcessWeightSyncScheme
from rlinf_async.errors import RLinfAsyncError
from rlinf_async.weights.links import socket_link
from rlinf_async.weights.links.pipe_mail import PipeMail
from tests._support.weight_parts import messages as say
from tests.weights.ends import Tied

STEPS = ("notice", "join", say.HELLO, say.ACK, say.PUBLISH, "bye")

SOON, ANY = 0.2, 20.0
"""Seconds for what may not come at all, and for what comes."""


class Ends:
    """Both, over one pipe."""

    def __init__(self, mode: str) -> None:
        self.ours, self.theirs = multiprocessing.Pipe()
        self.mode = mode
        self.source, self.model = Tied(1.0), Tied()
        self.begin_sending()
        self.begin_receiving()

    def begin_sending(self) -> None:
        self.sending = MultiProcessWeightSyncScheme(ack_timeout=SOON)
        self.sending.init_on_sender("policy", pipes=[self.ours], source_model=self.source)
        self.sender = self.sending.get_sender()

    def begin_receiving(self) -> None:
        self.receiving = MultiProcessWeightSyncScheme(ack_timeout=SOON)
        self.receiving.init_on_worker("policy", pipe=self.theirs, model=self.model)
        self.receiver = self.receiving.get_receiver()

    def receive(self, timeout: float = SOON) -> Any:
        if self.mode == "own":
            return self.receiver.receive(timeout)
        while self.theirs.poll(timeout):
            (_model_id, notice), _ = self.theirs.recv()
            self.receiver.apply_weights(notice)
            if self.receiver.version:
                return True
        return False

    def close(self) -> None:
        self.sending.close()
        self.receiving.close()


def stop_at(step: str, do: Callable[[], None], patch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """Has something done, once, just before that is said; it goes on when that is done, or takes long.

    Returns:
        The thread that does it, once the step is reached.
    """
    found_it: list[threading.Thread] = []

    def pause(found: str) -> None:
        if found == step and not found_it:
            found_it.append(threading.Thread(target=do))
            found_it[0].start()
            found_it[0].join(0.2)  # it may wait for the one that is held up here

    tell, post = socket_link.SocketLink._say, PipeMail.post

    def tell_later(link: Any, words: Any, kind: int) -> None:
        pause({socket_link._JOIN: "join", socket_link._BYE: "bye"}.get(kind) or words[0])
        tell(link, words, kind)

    def post_later(mail: Any, *message: Any) -> bool:
        pause("notice")
        return post(mail, *message)

    patch.setattr(socket_link.SocketLink, "_say", tell_later)
    patch.setattr(PipeMail, "post", post_later)
    return found_it


@pytest.mark.parametrize("mode", ["own", "loop"])
@pytest.mark.parametrize("action", ["the sender closes", "the receiver closes", "the sender begins anew"])
@pytest.mark.parametrize("step", STEPS)
def test_each_side_may_go_at_each_step(step: str, action: str, mode: str) -> None:
    ends = Ends(mode)

    def act() -> None:
        if action == "the receiver closes":
            ends.receiving.close()
            return
        ends.sending.close()
        if action == "the sender begins anew":
            ends.begin_sending()

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(2) as threads:
        acting = stop_at(step, act, patch)
        begun = time.monotonic()
        for value in itertools.count(2):
            if value > 3 and (acting or step == "bye" or time.monotonic() - begun > ANY / 2):
                break
            ends.source.fill(float(value))
            works = [threads.submit(ends.sender.send, timeout=SOON), threads.submit(ends.receive)]
            for work in works:
                error = work.exception(ANY)
                assert error is None or isinstance(error, (RLinfAsyncError, RuntimeError)), repr(error)
        ends.close()
        assert acting, "this is never said"
        acting[0].join(ANY)
        ends.close()
        assert time.monotonic() - begun < ANY
    for begin in (ends.begin_sending, ends.begin_receiving):
        begin()
    ends.source.fill(7.0)
    with ThreadPoolExecutor(1) as threads:
        work = threads.submit(ends.sender.send, timeout=ANY)
        assert ends.receive(ANY)
        assert work.result(ANY).version == 1
    assert ends.model.values() == {7.0}
    ends.close()
    for pipe in (ends.ours, ends.theirs):
        pipe.close()
