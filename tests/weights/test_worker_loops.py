"""Workers whose own loop reads the pipe, as TorchRL's collectors do: notices, deaths, ids, forks."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import multiprocessing
import os
import signal
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from rlinf_async import MultiProcessWeightSyncScheme, SharedMemWeightSyncScheme, WeightStrategy
from rlinf_async.errors import ClosedError, DeadlineExceeded, ForkedProcessError, PeerLost
from tests._support import leaks
from tests._support.forked_children import forked
from tests.weights.ends import Tied

KINDS = [MultiProcessWeightSyncScheme, SharedMemWeightSyncScheme]
every_kind = pytest.mark.parametrize("kind", KINDS)


def worker_loop(pipe: Any, receiver: Any) -> None:
    """TorchRL's, unedited."""
    while True:
        data, msg = pipe.recv()
        if msg == "update_weights":
            _model_id, weights = data
            receiver.apply_weights(weights)
        elif msg == "close":
            return
        else:
            raise RuntimeError(f"unknown message {msg!r}")


def collectors_loop(pipe: Any, receiver: Any) -> None:
    """That of the collectors of that commit, which registered memory is told to."""
    while True:
        data, msg = pipe.recv()
        if msg == "register_shared_weights":
            _model_id, weights = data
            WeightStrategy("tensordict").apply_weights(receiver._resolve_model_ref(), weights)
            pipe.send((None, "registered"))
        elif msg == "update_weights":
            _model_id, weights = data
            receiver.apply_weights(weights)
        elif msg == "close":
            return
        else:
            raise RuntimeError(f"unknown message {msg!r}")


class Pair:
    """A sender, and a worker's scheme that has not been initialised."""

    def __init__(self, kind: Any, **options: Any) -> None:
        self.sending, self.receiving = kind(**options), kind(**options)
        self.source, self.model = Tied(1.0), Tied()
        self.ours, self.theirs = multiprocessing.Pipe()

    def begin(self, sender_id: str = "policy", receiver_id: str = "policy") -> tuple[Any, Any]:
        self.sending.init_on_sender(sender_id, pipes=[self.ours], source_model=self.source)
        self.receiving.init_on_worker(receiver_id, pipe=self.theirs, model=self.model)
        return self.sending.get_sender(), self.receiving.get_receiver()

    def close(self) -> None:
        self.sending.close()
        self.receiving.close()
        for pipe in (self.ours, self.theirs):
            pipe.close()


@pytest.fixture
def pair(kind: Any) -> Iterator[Pair]:
    with contextlib.closing(Pair(kind)) as made:
        yield made


# -- TorchRL's loop -------------------------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("apply", ["copy", "map"])
def test_a_loop_in_a_thread_gets_a_message_for_every_version(kind: Any, apply: str) -> None:
    with contextlib.closing(Pair(kind, apply=apply)) as pair:
        sender, receiver = pair.begin()
        thread = threading.Thread(target=worker_loop, args=(pair.theirs, receiver))
        thread.start()
        for version in (1, 2, 3):
            pair.source.fill(float(version))
            assert sender.send(timeout=20).version == version
            assert pair.model.values() == {float(version)}
        pair.ours.send((None, "close"))
        thread.join(20)
        assert not thread.is_alive()
        assert not pair.ours.poll(0)


@pytest.mark.parametrize("is_read", [True, False], ids=["read at once", "read later"])
@pytest.mark.parametrize("apply", ["copy", "map"])
def test_a_loop_hears_of_a_registered_buffer_before_anything_is_sent(apply: str, is_read: bool) -> None:
    buffer = TensorDict.from_module(Tied(0.0)).data.clone()
    ours, theirs = multiprocessing.Pipe()
    sending = SharedMemWeightSyncScheme({"policy": buffer}, apply=apply)
    receiving, source, model = SharedMemWeightSyncScheme(apply=apply), Tied(1.0), Tied()
    sending.init_on_sender("policy", pipes=[ours], source_model=source)
    assert theirs.poll(5)
    if is_read:
        (model_id, _), text = theirs.recv()
        assert (model_id, text) == ("policy", "register_shared_weights")
        theirs.send((None, "registered"))
    receiving.init_on_worker("policy", model=model)
    thread = threading.Thread(target=collectors_loop, args=(theirs, receiving.get_receiver()))
    thread.start()
    for version in (1, 2, 3):
        source.fill(float(version))
        assert sending.get_sender().send(timeout=20).version == version
        assert model.values() == {float(version)}
    ours.send((None, "close"))
    thread.join(20)
    assert not ours.poll(0), "its answer was taken"
    for each in (sending, receiving, ours, theirs):
        each.close()


@every_kind
@pytest.mark.parametrize("apply", ["copy", "map"])
@pytest.mark.parametrize("has_pipe", [True, False])
def test_a_loop_in_a_forked_process_gets_them_too(kind: Any, apply: str, has_pipe: bool) -> None:
    if kind is MultiProcessWeightSyncScheme and not has_pipe:
        pytest.skip("that worker has to be told of its pipe")
    with contextlib.closing(Pair(kind, apply=apply)) as pair:

        def work() -> None:
            pipe = {"pipe": pair.theirs} if has_pipe else {}
            pair.receiving.init_on_worker("policy", model=pair.model, **pipe)
            worker_loop(pair.theirs, pair.receiving.get_receiver())
            assert pair.model.values() == {3.0}

        with forked(work) as child:
            pair.sending.init_on_sender("policy", pipes=[pair.ours], source_model=pair.source)
            sender = pair.sending.get_sender()
            for version in (1, 2, 3):
                pair.source.fill(float(version))
                assert sender.send_async() == version
                pair.source.fill(-1.0)
                assert sender.wait_async().version == version
            pair.ours.send((None, "close"))
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("loop", [worker_loop, collectors_loop])
def test_a_buffer_that_is_registered_is_told_to_a_loop_that_answers(loop: Any) -> None:
    with contextlib.closing(Pair(SharedMemWeightSyncScheme, strategy="state_dict")) as pair:
        buffer = TensorDict({"w": torch.zeros(2)})
        registers = loop is collectors_loop
        if registers:
            pair.sending = SharedMemWeightSyncScheme({"policy": buffer})
            assert pair.sending.policy_weights == {"policy": buffer}
            assert pair.sending.create_transport(pipe=None) is pair.sending.transport
        pair.source = pair.model = {"w": torch.zeros(2)}  # type: ignore[assignment]
        pair.sending.init_on_sender("policy", pipes=[pair.ours])
        pair.receiving.init_on_worker("policy", pipe=pair.theirs, model=pair.model)
        thread = threading.Thread(target=loop, args=(pair.theirs, pair.receiving.get_receiver()))
        thread.start()
        for value in (1.0, 2.0):
            weights = TensorDict({"w": torch.full((2,), value)})
            pair.sending.get_sender().send(weights, timeout=20)
            assert pair.model["w"].tolist() == [value] * 2  # type: ignore[index]
            assert not pair.ours.poll(0), "its answer was taken"
        pair.ours.send((None, "close"))
        thread.join(20)


@every_kind
def test_other_messages_go_both_ways_between_the_notices(kind: Any, pair: Pair) -> None:
    sender, receiver = pair.begin()
    found = []

    def loop() -> None:
        while True:
            data, msg = pair.theirs.recv()
            if msg == "update_weights":
                receiver.apply_weights(data[1])
                pair.theirs.send((None, "applied"))
            elif msg == "close":
                return
            else:
                found.append((data, msg))

    thread = threading.Thread(target=loop)
    thread.start()
    for version in range(1, 4):
        pair.ours.send((version, "continue"))
        sender.send(timeout=20)
        assert pair.ours.recv() == (None, "applied")
    pair.ours.send((None, "close"))
    thread.join(20)
    assert found == [(1, "continue"), (2, "continue"), (3, "continue")]


@every_kind
def test_weights_that_others_put_into_the_pipe_stay_in_it(kind: Any, pair: Pair) -> None:
    sender, receiver = pair.begin()
    sender.send_async()
    assert receiver.receive(20.0)
    sender.wait_async()
    pair.ours.send((("policy", {"w": 1.0}), "update_weights"))
    assert not receiver.receive(0.05)
    assert pair.theirs.recv() == (("policy", {"w": 1.0}), "update_weights")


@every_kind
def test_a_worker_that_joins_late_finds_one_notice_and_gets_the_latest_version(kind: Any, pair: Pair) -> None:
    sender, receiver = pair.begin()
    for _ in range(2):
        with pytest.raises(DeadlineExceeded, match="receiver 0"):
            sender.send(timeout=0.1)
    data, text = pair.theirs.recv()
    assert (data[0], data[1].version, text) == ("policy", 1, "update_weights")
    assert not pair.theirs.poll(0)
    receiver.apply_weights(data[1])
    assert (receiver.version, pair.model.values()) == (2, {1.0})


@every_kind
def test_a_notice_that_was_read_in_vain_is_followed_by_another(kind: Any, pair: Pair) -> None:
    sender, _receiver = pair.begin()
    for version in (1, 2):
        with pytest.raises(DeadlineExceeded, match="receiver 0"):
            sender.send(timeout=0.1)
        assert pair.theirs.recv()[0][1].version == version


@every_kind
def test_what_does_not_fit_is_raised_in_the_loop_and_at_the_sender_and_is_mended(kind: Any, pair: Pair) -> None:
    sender, receiver = pair.begin()
    receiver._register_model(Tied(width=4))
    errors: list[Exception] = []

    def loop() -> None:
        while True:
            data, msg = pair.theirs.recv()
            if msg == "close":
                return
            try:
                receiver.apply_weights(data[1])
            except Exception as error:
                errors.append(error)
                receiver._register_model(pair.model)

    thread = threading.Thread(target=loop)
    thread.start()
    with pytest.raises(Exception, match="head"):
        sender.send(timeout=20)
    with contextlib.suppress(KeyError):  # the refusal is told once more, and asks
        sender.send(timeout=20)
    receiver.wait_version(2, timeout=20)
    sender.send(Tied(3.0), timeout=20)
    pair.ours.send((None, "close"))
    thread.join(20)
    assert pair.model.values() == {3.0}
    assert [type(error).__name__ for error in errors] == ["WeightMismatch"]


# -- deaths ---------------------------------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("moment", ["before a send", "while one is pending"])
def test_a_killed_worker_is_named_within_a_second_although_its_siblings_have_its_pipe(kind: Any, moment: str) -> None:
    pairs = [Pair(kind) for _ in range(2)]  # all pipes before all forks: each child has every end
    sending, source = kind(), Tied(1.0)
    lifeline = os.pipe()
    with contextlib.ExitStack() as stack:
        children = []
        for each in pairs:

            def work(each: Pair = each) -> None:
                each.receiving.init_on_worker("policy", pipe=each.theirs, model=each.model)
                receiver = each.receiving.get_receiver()
                if each is pairs[0]:
                    each.receiving.connect(timeout=20)
                    if os.fork() == 0:  # which has its pipe too
                        os.close(lifeline[1])
                        os.read(lifeline[0], 1)
                        os._exit(0)
                    for version in (1, 2):
                        receiver.wait_version(version, timeout=20)
                    each.theirs.send("takes no more")
                    threading.Event().wait()
                worker_loop(each.theirs, receiver)

            children.append(stack.enter_context(forked(work)))
        sending.init_on_sender("policy", pipes=[each.ours for each in pairs], source_model=source)
        sender = sending.get_sender()
        for _ in range(2):
            sender.send(timeout=20)
        assert pairs[0].ours.recv() == "takes no more"
        if moment == "while one is pending":
            sender.send_async(timeout=30)
        os.kill(children[0], signal.SIGKILL)
        begun = time.monotonic()
        gone = rf"\(pid {children[0]}\) is gone: its process has ended: killed by SIGKILL"
        with pytest.raises(PeerLost, match=gone) as raised:
            sender.wait_async() if moment == "while one is pending" else sender.send(timeout=30)
        assert time.monotonic() - begun < 1
        assert "worker 1" not in str(raised.value.__notes__)
        sending.close()
        for each in pairs:
            each.close()
    for number in lifeline:
        os.close(number)


@every_kind
def test_a_worker_that_ends_before_it_has_joined_is_known_by_its_pipe(kind: Any, pair: Pair) -> None:
    sender, _ = pair.begin()
    pair.receiving.close()
    ending = threading.Timer(0.1, pair.theirs.close)
    ending.start()
    with pytest.raises(PeerLost, match="end of the pipe is"):
        sender.send(timeout=30)
    ending.join()


# -- ids ------------------------------------------------------------------------------------------------------------


@every_kind
async def test_where_the_ids_differ_each_sides_error_names_the_others(kind: Any, pair: Pair) -> None:
    sender, receiver = pair.begin("actor", "policy")
    sending = sender.send(timeout=1.0)
    with pytest.raises(DeadlineExceeded, match=r"'policy'.*'actor'"):
        await receiver.connect(timeout=0.5)
    with pytest.raises(DeadlineExceeded, match="which has a receiver of 'policy' and none of 'actor'"):
        await sending
    await pair.sending.close()
    await pair.receiving.close()


@every_kind
def test_where_the_ids_differ_a_loop_is_told_at_once_and_the_sender_too(kind: Any, pair: Pair) -> None:
    sender, receiver = pair.begin("actor", "policy")
    errors: list[Exception] = []

    def loop() -> None:
        data, _ = pair.theirs.recv()
        try:
            receiver.apply_weights(data[1])
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=loop)
    thread.start()
    with pytest.raises(DeadlineExceeded, match="which has a receiver of 'policy' and none of 'actor'"):
        sender.send(timeout=0.5)
    thread.join(20)
    assert "weights of 'actor' has come to the receiver of 'policy'" in str(errors[0])


@every_kind
async def test_two_models_share_a_pipe(kind: Any) -> None:
    pairs, pipes = {name: Pair(kind) for name in ("policy", "critic")}, multiprocessing.Pipe()
    for name, each in pairs.items():
        for pipe in (each.ours, each.theirs):
            pipe.close()
        each.ours, each.theirs = pipes
        each.begin(name, name)
    for number in (1.0, 2.0):
        for each in pairs.values():
            each.source.fill(number)
        sends = [each.sending.get_sender().send(timeout=20) for each in pairs.values()]
        for each in reversed(pairs.values()):
            assert await each.receiving.get_receiver().receive(20.0)
        for work in sends:
            await work
        assert [each.model.values() for each in pairs.values()] == [{number}] * 2
    for each in pairs.values():
        await each.sending.close()
        await each.receiving.close()
        each.close()


# -- closed, forked -------------------------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("has_met", [True, False])
def test_closed_ends_say_so_at_once(kind: Any, pair: Pair, has_met: bool) -> None:
    sender, receiver = pair.begin()
    if has_met:
        sender.send_async()
        assert receiver.receive(20.0)
        sender.wait_async()
    pair.sending.close()
    pair.receiving.close()
    begun = time.monotonic()
    calls: list[Callable[[], Any]] = [
        sender.send,
        sender.send_async,
        sender.connect,
        lambda: sender.replace(0, pair.ours),
        lambda: receiver.receive(20.0),
        receiver.connect,
        lambda: receiver.apply_weights(Tied(2.0).state_dict()),
        lambda: receiver.wait_version(9, 20.0),
        lambda: receiver.wait_fresh(0, 20.0),
    ]
    for call in calls:
        with pytest.raises(ClosedError):
            call()
    with pytest.raises(ClosedError):
        asyncio.run(served(receiver))
    assert time.monotonic() - begun < 1


async def served(receiver: Any) -> None:
    receiver.serve()


@every_kind
def test_ends_that_have_met_are_of_no_use_in_a_forked_process(kind: Any, pair: Pair) -> None:
    sender, receiver = pair.begin()
    sender.send_async()
    assert receiver.receive(20.0)
    sender.wait_async()

    def look() -> None:
        for call in (
            sender.send,
            lambda: receiver.receive(20.0),
            receiver.connect,
            receiver.reading,
            lambda: receiver.apply_weights(Tied(3.0).state_dict()),
            lambda: receiver.wait_version(9, 20.0),
        ):
            with pytest.raises(ForkedProcessError, match="'policy' belongs to process"):
                call()
        assert receiver.version == 1
        pair.sending.close()
        pair.receiving.close()

    with forked(look) as child:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    sender.send_async(Tied(2.0))
    assert receiver.receive(20.0)
    sender.wait_async()
    assert pair.model.values() == {2.0}


@every_kind
@pytest.mark.parametrize("apply", ["copy", "map"])
def test_a_pair_that_is_dropped_leaves_no_thread_and_no_descriptor_and_warns_once(kind: Any, apply: str) -> None:
    with contextlib.closing(Pair(kind, apply=apply)) as kept:  # what the process has of it from then on
        kept.begin()[0].send_async()
        assert kept.receiving.get_receiver().receive(20.0)
    gc.collect()
    before = leaks.take()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        pair = Pair(kind, apply=apply)
        sender, receiver = pair.begin()
        sender.send_async()
        assert receiver.receive(20.0)
        sender.wait_async()
        for pipe in (pair.ours, pair.theirs):
            pipe.close()
        model = pair.model
        dropped = weakref.ref(sender)
        del pair, sender, receiver
        until = time.monotonic() + 5
        while dropped() is not None and time.monotonic() < until:
            gc.collect()  # the thread that has settled the last wait may have it for a moment
        found = leaks.settle(before)
    assert found == []
    assert [str(each.message) for each in told if each.category is ResourceWarning] == [
        "unclosed publisher of 'policy': close() it, or its scheme"
    ]
    assert model.values() == {1.0}
