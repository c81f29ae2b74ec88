"""Sends of one model, one after the other."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from rlinf_async.weights import Publisher
from rlinf_async.weights.plane.sends import Sends
from tests._support.weight_parts import SyncAdapter


def test_threads_that_send_first_at_once_have_one_publisher() -> None:
    both_make = threading.Barrier(2)

    def make() -> Publisher:
        both_make.wait(5)
        return Publisher()

    sends = Sends(SyncAdapter(), make)
    with ThreadPoolExecutor(2) as threads:
        one, other = (threads.submit(lambda: sends.publisher) for _ in range(2))
    assert one.result() is other.result() is sends.publisher is sends.made
