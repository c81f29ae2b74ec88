"""Claims of the conformance suite: coroutines, and the ends that they run against.

A claim runs where the sender is, and is the same code whatever the scheme and wherever its receivers are::

    @claim()
    async def what_is_sent_is_what_the_workers_have(make):
        async with make(source=Tied(1.0)) as ends:
            await ends.deliver()
            await ends.expect(1, 1.0)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from rlinf_async.errors import ClosedError
from rlinf_async.weights import ParamTree
from tests._support.weight_parts import messages as say
from tests.weights.ends import CALLED, Tied, shown

CALLS = ("worker call", "rpc call", "module transform call")
"""Kinds whose workers' methods are called, by another worker."""

APART = ("linked", "distributed", *CALLS, "none")
"""Kinds whose ends are in workers."""

ANY = 20.0
"""Seconds for what comes: nothing is claimed about how soon."""


class Way(NamedTuple):
    """A scheme, what its receivers do with weights, and what these are extracted as."""

    kind: str
    apply: str
    strategy: str

    def __str__(self) -> str:
        return f"{self.kind} {self.apply} {self.strategy}"

    @property
    def is_called(self) -> bool:
        return self.kind in CALLED or self.kind in CALLS


def ways_of(kinds: Iterable[str]) -> list[Way]:
    """Each kind with copies in both forms; the form is the affair of the ends, whether they map or not."""
    ways = ("copy", "state_dict"), ("copy", "tensordict"), ("map", "state_dict")
    return [Way(kind, *way) for kind in kinds for way in ways]


class Receiving:
    """A worker's end, and what is asked of it: in the sender's process, or, as a worker, in another one."""

    def put(self, scheme: Any, model: Any) -> None:
        """Ends of that scheme, which has been initialised."""
        self.scheme, self.model = scheme, model
        self.receiver = scheme.get_receiver()
        self.failures: list[str] = []
        self.reading: Any = None
        self.kept: list[dict[str, torch.Tensor]] = []
        self.serving: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        await self.scheme.connect(timeout=ANY)

    async def take(self, timeout: float = ANY) -> bool:
        """What a worker's loop does with one update."""
        try:
            return bool(await self.receiver.receive(timeout))
        except Exception as error:
            self.failures.append(str(error))
            return False

    async def serve(self) -> None:
        self.serving = self.receiver.serve()

    async def widen(self, width: int) -> None:
        """The same model has other shapes from now on."""
        Tied.__init__(self.model, 2.0, width)

    async def look(self) -> tuple[int, set[float]]:
        return self.receiver.version, shown(self.model)

    async def standing(self) -> tuple[int, int, int]:
        return self.receiver.version, self.receiver.published, self.receiver.staleness

    async def values_of(self, name: str) -> set[float]:
        return set(self.model.state_dict()[name].flatten().tolist())

    async def values(self) -> set[float]:
        return shown(self.model)

    async def dtypes(self) -> set[torch.dtype]:
        return {tensor.dtype for _, tensor in ParamTree.of(self.model).items()}

    async def errors(self) -> list[str]:
        return self.failures

    async def forward(self) -> None:
        """Begins a training step, which saves parameters and views of them for its backward pass."""
        inputs = torch.ones(2, self.model.head.in_features, requires_grad=True)
        self.loss = self.model.head(self.model.layers(inputs)).sum() + (self.model.head.weight**2).sum()

    async def backward(self) -> str:
        """End that step; the error in words."""
        try:
            self.loss.backward()
        except RuntimeError as error:
            return str(error)
        finally:
            del self.loss
            torch.ones(1, requires_grad=True).sum().backward()  # until then torch keeps the rest of a pass that failed
        return "none"

    async def keep_snapshot(self) -> None:
        """Keep what the model has, as users do it, with the versions kept before."""
        self.kept = [*self.kept, {name: tensor.detach() for name, tensor in self.model.state_dict().items()}]

    async def drop_snapshots(self) -> None:
        self.kept.clear()

    async def snapshots(self) -> list[set[float]]:
        """The values of each."""
        return [shown(each) for each in self.kept]

    async def names_in_stack(self) -> list[str]:
        """The value ``name`` of each member of the model's lazy stack."""
        return [member["name"] for member in self.model["s"].tensordicts]

    async def is_mapped(self) -> bool:
        """True if the model stands in the sender's memory."""
        return not self.receiver._standing._applying.destination.is_copied

    async def hold(self) -> int:
        """Begins to read; the version."""
        self.reading = self.receiver.reading()
        version: int = await self.reading.__aenter__()
        return version

    async def release(self) -> None:
        await self.reading.__aexit__()

    async def on_message(self, version: int) -> None:
        """Until it knows that there is such a version, whether it has it or not."""
        async with asyncio.timeout(ANY):
            while self.receiver.published < version:
                await asyncio.sleep(0.001)  # nobody is told but those who wait for the version itself

    async def wait_version(self, version: int, timeout: float = ANY) -> None:
        await self.receiver.wait_version(version, timeout)

    async def end_of_waiting(self) -> str:
        """Wait for a version that never comes; the error in words."""
        try:
            await self.receiver.wait_version(99, ANY)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "none"

    async def wait_fresh(self, max_lag: int) -> None:
        await self.receiver.wait_fresh(max_lag, ANY)

    async def refusals_when_closed(self) -> list[str]:
        """Of methods of a receiver that is closed, those that do not say so."""
        await self.scheme.close()
        methods: dict[str, tuple[Any, ...]] = {"receive": (ANY,), "apply_weights": ({},), "connect": (), "serve": ()}
        methods |= {"wait_version": (99,), "wait_fresh": (0,), "reading": ()}
        return [name for name, given in methods.items() if not says_closed(getattr(self.receiver, name), *given)]

    async def close_ends(self) -> None:
        await self.scheme.close()
        if self.serving is not None:
            self.serving.cancel()
            await asyncio.wait([self.serving])


def says_closed(method: Callable[..., Any], *given: Any) -> bool:
    """Whether it says so at once, without anything to be awaited."""
    try:
        method(*given)
    except ClosedError as error:
        return "'policy' is closed" in str(error)
    return False


class Here:
    """A receiving end in this process, called as a group of one worker is."""

    def __init__(self, receiving: Receiving) -> None:
        self._receiving = receiving

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        return lambda *args: asyncio.gather(getattr(self._receiving, name)(*args))


class Ends:
    """A sender and its receivers.

    Args:
        receivers: a group of ``Receiving`` workers, or ``Here``.
        last: the last of them.
        size: how many they are.
    """

    def __init__(self, scheme: Any, receivers: Any, last: Any, size: int) -> None:
        self.scheme = scheme
        self.sender = scheme.get_sender()
        self.receivers = receivers
        self.size = size
        self.last = last

    async def connect(self) -> None:
        await asyncio.gather(_awaited(self.scheme.connect(timeout=ANY)), _awaited(self.receivers.connect()))

    async def deliver(self, *weights: Any, **options: Any) -> Any:
        """Sends, while every receiver takes one update, and hears what is wrong with it."""
        work = self.sender.send(*weights, **options)
        taking = asyncio.ensure_future(_awaited(self.receivers.take()))
        try:
            return await work
        finally:
            await taking

    async def expect(self, version: int, *values: float) -> None:
        """Every receiver has that version, and tensors of these values."""
        found = await self.receivers.look()
        assert found == [(version, set(values))] * self.size, f"{found}, and not version {version} of {values}"

    def overhear(self) -> Overheard | None:
        """From now on what a publisher says; None where there is none."""
        publisher = self.sender._sending.publisher
        return Overheard(publisher) if publisher.worker_ids else None


class Overheard:
    """What a publisher tells its receivers, to be told once more, as if it had been late, or doubled on its way."""

    def __init__(self, publisher: Any) -> None:
        self._receivers = publisher._receivers
        self._said: dict[int, list[tuple[Any, tuple[Any, ...]]]] = {}
        self._answered = asyncio.Queue[int]()
        for receiver in self._receivers._receivers.values():
            self._listen(receiver, receiver.send_message)
        acked, loop = self._receivers._acked, asyncio.get_running_loop()

        def note(receiver: Any, version: int, *facts: Any) -> Any:
            loop.call_soon_threadsafe(self._answered.put_nowait, version)
            return acked(receiver, version, *facts)

        self._receivers._acked = note

    def _listen(self, receiver: Any, tell: Any) -> None:
        def note(*words: Any) -> None:
            if words[0] == say.PUBLISH:
                self._said.setdefault(words[1], []).append((receiver, words))
            tell(*words)

        receiver.send_message = note

    async def repeat(self, version: int) -> None:
        """Until every receiver has answered it once more."""
        while not self._answered.empty():
            self._answered.get_nowait()
        said = self._said[version]
        for receiver, words in list(said):
            receiver.send_message(*words)
        async with asyncio.timeout(ANY):
            for _ in said[: len(said) // 2]:
                while await self._answered.get() != version:
                    pass


Open = Callable[..., AbstractAsyncContextManager[Ends]]


@dataclass(frozen=True)
class Make:
    """Opens ends of one way: ``async with make(source=Tied(1.0)) as ends``.

    Args:
        begin: takes the way, the source, what makes a receiver's model, and the scheme's options.
    """

    way: Way
    begin: Open

    def __call__(
        self, source: Any = None, *, model: Callable[[], Any] = Tied, **options: Any
    ) -> AbstractAsyncContextManager[Ends]:
        options = {"apply": self.way.apply, **options}
        return self.begin(self.way, Tied(1.0) if source is None else source, model, **options)


Claim = Callable[[Make], Awaitable[None]]

CLAIMS: dict[str, Claim] = {}
_UNLESS: dict[str, tuple[str, ...]] = {}
_ONLY: dict[str, Callable[[Way], bool]] = {}


def claim(*, unless: tuple[str, ...] = (), only: Callable[[Way], bool] | None = None) -> Callable[[Claim], Claim]:
    """Registers one, of all ways that carry weights.

    Args:
        unless: kinds of which it cannot be said.
        only: the ways of which it is said instead.
    """

    def register(made: Claim) -> Claim:
        name = made.__name__
        CLAIMS[name], _UNLESS[name] = made, unless
        if only is not None:
            _ONLY[name] = only
        return made

    return register


FEW = (
    "what_is_sent_is_what_the_workers_have",
    "only_the_keys_that_are_named_are_sent",
    "an_unknown_key_another_shape_and_another_dtype_are_named_and_the_last_version_stays",
    "a_number_that_comes_late_or_twice_changes_nothing",
    "who_does_not_answer_in_time_is_named_and_is_whole_with_the_next_version",
    "nobody_reads_while_weights_are_applied_and_a_reader_knows_how_far_behind_it_is",
)
"""Of a torch job whose ends are apart: each claim opens connections to a store, which may take torch seconds."""


def claims_apart(way: Way) -> list[str]:
    """What is claimed of that way where the ends are in workers."""
    return claims_of(way, among=FEW if way.kind == "distributed" else None)


def claims_of(way: Way, *, among: Collection[str] | None = None) -> list[str]:
    """What is claimed of that way."""

    def holds(name: str) -> bool:
        if name in _ONLY:
            return _ONLY[name](way)
        carries = way.kind != "none" and not (way.is_called and way.apply == "map")
        return carries and way.kind not in _UNLESS[name]

    # In an order that does not depend on which of the modules of claims was imported first.
    return sorted(name for name in CLAIMS if holds(name) and (among is None or name in among))


async def _awaited(work: Any) -> Any:
    return await work
