"""Gloo pairs between processes: waits depend on the sending peer only, through every failure."""

from __future__ import annotations

import functools
import random
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from tests._support.fake_hosts import CHECKOUT, FakeHosts, Host
from tests._support.link_processes import Peers, finish, peers

MiB = 1 << 20
SOON = 1.0
"""Seconds within which a fault is known to everybody whom it concerns."""

NAMES = "abcd"


@pytest.fixture
def four() -> Iterator[Peers]:
    with peers(dict.fromkeys(NAMES, "127.0.0.1")) as found:
        yield found


def error_of(future: Future[Any], timeout: float = SOON) -> str:
    with pytest.raises(RuntimeError) as caught:
        future.result(timeout)
    return str(caught.value)


def test_circles_of_peers_that_all_send_first_come_to_an_end(four: Peers) -> None:
    """Every process sends to every other at once, in every order, more than sockets hold."""
    orders = random.Random(7)
    works = []
    for number in range(5):
        pairs = [(source, target) for source in NAMES for target in NAMES if source != target]
        orders.shuffle(pairs)
        works += [four.send(source, target, number, 4 * MiB) for source, target in pairs]
        orders.shuffle(pairs)
        works += [four.receive(source, target, number, 4 * MiB) for source, target in pairs]
    finish(works, 30)


def test_a_process_has_two_threads_for_all_links_and_one_for_each(four: Peers) -> None:
    before = four.count("a")[0]
    for others in ("b", "bc", "bcd"):
        for other in others:
            finish(four.transfer("a", other, len(others), MiB))
        assert four.count("a")[0] - before == 2 + len(others)


def test_a_killed_peer_fails_what_is_on_its_way_and_the_survivor_goes_on_with_others(four: Peers) -> None:
    finish(four.transfer("a", "b", 0, MiB))
    four.freeze("b")
    sent = four.send("a", "b", 1, 64 * MiB)
    asked = four.receive("b", "a", 1, 64 * MiB)
    finish(four.transfer("a", "c", 0, MiB))
    assert not sent.done()
    four.kill("b")
    began = time.monotonic()
    four.discard("a", "b", "WorkerDied")  # the daemon of b has told
    assert "WorkerDied" in error_of(sent)
    assert "WorkerDied" in error_of(asked)
    finish([*four.transfer("a", "c", 1, 8 * MiB), *four.transfer("c", "a", 1, 8 * MiB)])
    assert time.monotonic() - began < SOON


def test_a_frozen_peer_holds_up_nobody_else_and_a_deadline_frees_what_waits_for_it(four: Peers) -> None:
    finish([*four.transfer("a", "b", 0, MiB), *four.transfer("b", "a", 0, MiB)])
    received = four.receive("b", "a", 1, 64 * MiB)
    sent = four.send("a", "b", 1, 64 * MiB)
    asked = four.receive("a", "b", 1, 64 * MiB)
    four.freeze("b")
    finish([*four.transfer("a", "c", 1, 64 * MiB), *four.transfer("c", "a", 1, 64 * MiB)])
    began = time.monotonic()
    four.discard("a", "b")
    assert "the deadline has passed" in error_of(received)
    with pytest.raises(RuntimeError, match="the deadline has passed"):
        sent.result(SOON) and pytest.skip("it was sent before the peer was frozen")
    assert time.monotonic() - began < SOON
    four.thaw("b")
    assert "the deadline has passed" in error_of(asked)
    finish([*four.transfer("a", "b", 2, 8 * MiB), *four.transfer("b", "a", 2, 8 * MiB)])


@pytest.mark.parametrize("frozen", ["a", "b"])
def test_a_transfer_may_take_longer_than_any_timeout_of_gloos(four: Peers, frozen: str) -> None:
    finish(four.transfer("a", "b", 0, MiB))
    works = [work for number in range(1, 5) for work in four.transfer("a", "b", number, 32 * MiB)]
    finish(works[:2])
    four.freeze(frozen)  # in the middle of the rest
    time.sleep(2)
    assert not all(work.done() for work in works)
    four.thaw(frozen)
    finish(works)


def test_discards_at_random_moments_leave_nothing_and_the_next_exchange_works(four: Peers) -> None:
    finish([*four.transfer("a", "b", 0, MiB), *four.transfer("b", "a", 0, MiB)])
    before = [four.count(name) for name in "ab"]
    moments = random.Random(11)
    for number in range(1, 30, 2):
        works = [*four.transfer("a", "b", number, 16 * MiB), *four.transfer("b", "a", number, 16 * MiB)]
        time.sleep(moments.random() * 0.04)
        four.discard(*moments.choice(["ab", "ba"]))
        for work in works:
            assert re.search("^None$|deadline|given up", str(work.exception(5)))
        finish([*four.transfer("a", "b", number + 1, MiB), *four.transfer("b", "a", number + 1, MiB)])
    deadline = time.monotonic() + 5
    while [four.count(name) for name in "ab"] > before:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.namespaces
def test_a_link_that_goes_down_in_mid_transfer_leaves_the_next_exchange_working(
    fake_hosts: Callable[..., FakeHosts],
) -> None:
    hosts = fake_hosts(2)
    with peers() as two:
        for name, host in zip("ab", hosts, strict=True):
            two.start({name: host.address}, functools.partial(start_on, host))
        finish([*two.transfer("a", "b", 0, MiB), *two.transfer("b", "a", 0, MiB)])
        works = [work for number in range(1, 9) for work in two.transfer("a", "b", number, 32 * MiB)]
        finish(works[:2])
        hosts[0].link_down()
        assert not all(work.done() for work in works)
        began = time.monotonic()
        two.discard("a", "b")
        for work in works:
            assert re.search("^None$|deadline", str(work.exception(SOON)))
        assert time.monotonic() - began < SOON
        hosts[0].link_up()
        finish([*two.transfer("a", "b", 100, 8 * MiB), *two.transfer("b", "a", 100, 8 * MiB)])
        works = [work for number in range(101, 109) for work in two.transfer("a", "b", number, 32 * MiB)]
        finish(works[:2])
        hosts[0].link_down()
        time.sleep(2)  # longer than any timeout of Gloo's
        hosts[0].link_up()
        finish(works)  # without anybody's doing


def start_on(host: Host, command: list[str], files: list[int]) -> subprocess.Popen[Any]:
    return host.popen(command, pass_fds=files, cwd=CHECKOUT)
