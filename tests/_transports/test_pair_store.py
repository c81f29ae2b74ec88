"""Store of two processes: sets reach the other side, waits end."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from torch.distributed import PrefixStore

from rlinf_async._transports.pair_store import PeerStore
from rlinf_async.errors import TransferFailed


def two() -> tuple[PeerStore, PeerStore]:
    def tell_the_far_one(key: str, value: bytes) -> None:
        far.on_set(key, value)

    def tell_the_near_one(key: str, value: bytes) -> None:
        near.on_set(key, value)

    near, far = PeerStore(tell_the_far_one), PeerStore(tell_the_near_one)
    return near, far


def in_a_thread(function: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    results: list[object] = []

    def run() -> None:
        try:
            results.append(function())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, results


def test_what_is_set_on_one_side_is_there_on_both() -> None:
    near, far = two()
    near.set("key", b"value")
    far.set("other", "text")
    assert [store.get("key") for store in (near, far)] == [b"value"] * 2
    assert near.get("other") == b"text"
    assert far.check(["key", "other"])
    assert not far.check(["key", "third"])


def test_it_serves_torch_also_under_a_prefix() -> None:
    near, far = two()
    PrefixStore("group", near).set("key", "value")
    assert PrefixStore("group", far).get("key") == b"value"


def test_a_key_that_is_not_there_is_waited_for() -> None:
    near, far = two()
    thread, results = in_a_thread(lambda: near.get("key"))
    far.set("key", b"value")
    thread.join(5)
    assert results == [b"value"]


def test_closing_ends_every_wait_now_and_later() -> None:
    near, _ = two()
    near.set("there", b"")
    thread, results = in_a_thread(lambda: near.wait(["there", "missing"]))
    near.close()
    thread.join(5)
    assert isinstance(results[0], TransferFailed)
    with pytest.raises(TransferFailed, match="not wanted any more"):
        near.get("there")
