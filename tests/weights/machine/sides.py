"""Two sides of weights that acts of a program drive, wherever they are: each notes what a promise forbids."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
from collections.abc import Callable
from typing import Any

import torch

from rlinf_async.errors import ClosedError, DeadlineExceeded, PeerLost, RLinfAsyncError, WeightMismatch
from rlinf_async.testing import monotonic

SOON_S = 2.0
"""Seconds within which a send ends that waits for no follower."""


def tensors(value: float, size: int, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    return {
        name: torch.full(shape, value, dtype=dtype) for name, shape in (("a", (3, 5)), ("b", (700,)), ("c", (size,)))
    }


def open_slots() -> dict[int, int]:
    """Find this process's descriptors of weights in memory, and the inode of each."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one that lists them
            if os.readlink(f"/proc/self/fd/{name}").startswith("/memfd:rlinf-policy"):
                found[int(name)] = os.fstat(int(name)).st_ino
    return found


class Trainer:
    """A publication, and the sends and waits that are under way.

    Attributes:
        unsent: numbers of sends that ended without a version.
        faults: broken promises.
    """

    def __init__(self, publish: Callable[[Any, dict[str, Any]], Any]) -> None:
        self._publish = publish
        self.weights: Any = None
        self.unsent: list[int] = []
        self.faults: list[str] = []
        self._tasks: list[asyncio.Task[Any]] = []

    async def open(self, how: dict[str, Any]) -> None:
        self._how = how
        self.weights = self._publish(tensors(0.0, how["size"]), how)

    async def idle_at(self) -> int | None:
        """Return the version that was sent last; None while something is under way."""
        return int(self.weights.version) if all(task.done() for task in self._tasks) else None

    async def send(self, numbers: list[int], seconds: float) -> None:
        self._tasks += [asyncio.create_task(self._send(number, seconds)) for number in numbers]

    async def _send(self, number: int, seconds: float) -> str:
        weights, sent, begun = self.weights, tensors(float(number), self._how["size"]), monotonic()
        try:
            version = await weights.send(sent, version=number, timeout=seconds)
        except BaseException as error:
            if weights.version < number:
                self.unsent.append(number)
            if self._how["behind"] and isinstance(error, DeadlineExceeded):
                self.faults.append(f"a follower that is late was told to the send of version {number}: {error!r}")
            return self._told(error)
        finally:
            for tensor in sent.values():
                tensor.fill_(-1.0)  # as an optimizer's step
        if version != number:
            self.faults.append(f"send() has sent version {version}, not {number}")
        if self._how["behind"] and self._how["is_exact"] and monotonic() - begun > SOON_S * len(self._tasks):
            self.faults.append(
                f"the send of version {number} took {monotonic() - begun:.1f} s: it waited for a follower"
            )
        return "sent"

    async def deliver(self, seconds: float | None) -> None:
        self._tasks.append(asyncio.create_task(self._deliver(seconds)))

    async def _deliver(self, seconds: float | None) -> str:
        weights = self.weights
        last = weights.version
        try:
            report = await weights.delivered(seconds)
        except BaseException as error:
            return self._told(error)
        if report.version < last or report.failed:
            self.faults.append(f"version {last} was sent, and delivered() returned {report}")
        return "delivered"

    def _told(self, error: BaseException) -> str:
        if not isinstance(error, (RLinfAsyncError, asyncio.CancelledError)) and "sent yet" not in str(error):
            self.faults.append(f"the trainer was told {error!r}")
        return repr(error)

    async def cancel(self, numbers: list[int], turns: int) -> None:
        """Begin sends, and cancel the operation that was begun last after so many turns of the loop."""
        await self.send(numbers, 5.0)
        for _ in range(turns):
            await asyncio.sleep(0)
        if pending := [task for task in self._tasks if not task.done()]:
            pending[-1].cancel()

    async def close(self, *, fails: bool = False) -> None:
        """Leave, if ``fails`` by an error; both without the wait for the last version."""
        weights, self.weights = self.weights, None
        if fails and hasattr(weights, "__aexit__"):
            error = ValueError("loss is nan")
            await weights.__aexit__(ValueError, error, None)
        else:
            await weights.close()

    async def rest(self, seconds: float) -> list[str]:
        """Return what became of each operation; one that does not end is a fault."""
        if self._tasks:
            _, pending = await asyncio.wait(self._tasks, timeout=seconds)
            self.faults += [f"{task.get_coro().__qualname__} has not ended" for task in pending]  # type: ignore[union-attr]
        ended = ["cancelled" if task.cancelled() else task.result() for task in self._tasks if task.done()]
        self._tasks.clear()
        return ended

    async def connect(self) -> None:
        """Have every receiver that has refused look again, in worlds where trainers do that."""
        if hasattr(self.weights, "connect"):
            await self.weights.connect(10.0)

    async def undelivered(self) -> list[int]:
        """Return the versions that stay under way, in worlds where trainers know."""
        return list(await self.weights.undelivered() if hasattr(self.weights, "undelivered") else [])

    async def story(self) -> tuple[list[int], list[str]]:
        return self.unsent, self.faults

    async def slots(self) -> int:
        """Count the memory objects of weights that this process has open."""
        gc.collect()  # of processes within this one that have died
        return len(set(open_slots().values()))


class Follower:
    """A model that follows, readers of it, and what they have seen.

    Attributes:
        seen: versions that were read, without repetitions.
        last: version of the weights in the model.
        faults: broken promises.
    """

    def __init__(self, follow: Callable[[Any, dict[str, Any]], Any]) -> None:
        self._follow = follow
        self.weights: Any = None
        self.seen: list[int] = []
        self.last = 0
        self.faults: list[str] = []
        self.model: dict[str, torch.Tensor] = {}
        self._is_misfit = False
        self._stays_at: int | None = None
        """Version beside which no other one may come into the model while it does not fit; None: one was coming."""
        self._read_now: list[Any] = []
        """The weights of each reader who stays: one who came while these closed keeps no writer out of the next."""
        self._handed: set[int] = set()
        """Versions that calls have written."""
        self._may_go_back = False
        self._order = asyncio.Lock()
        self._readers: dict[asyncio.Task[None], asyncio.Event] = {}
        self._kept: list[tuple[int, dict[str, torch.Tensor]]] = []

    async def follow(self, how: dict[str, Any], dtype: str = "float32") -> None:
        async with self._order:
            self._how = how
            if not self.model:
                self.model = tensors(0.0, how["size"], getattr(torch, dtype))
            if self.weights is not None:
                await self._close()
            self._may_go_back = self.last in self._handed  # of that version its sender may not have heard
            self.weights = self._follow(self.model, how)

    async def leave(self) -> None:
        async with self._order:
            if self.weights is not None:
                await self._close()

    async def _close(self) -> None:
        weights = self.weights
        closing = asyncio.ensure_future(weights.close())
        await asyncio.sleep(0)
        await self.release()  # which it waits for, if the model is mapped
        try:
            await closing
        finally:
            self.weights = None
            self._note(weights.version or self.last)

    # -- the model ------------------------------------------------------------------------------------------------

    def _values(self, model: dict[str, torch.Tensor]) -> set[float]:
        fitting = [tensor for name, tensor in model.items() if name != "b" or not self._is_misfit]
        return {float(bound) for tensor in fitting for bound in torch.aminmax(tensor)}

    def _note(self, version: int) -> None:
        """Hold the model against the version that it should have."""
        if (found := self._values(self.model)) != {float(version)}:
            self.faults.append(f"the model of version {version} holds {found}")
        if self._is_misfit and self._stays_at not in (None, version):
            self.faults.append(f"version {version} was applied to a model that did not fit since {self._stays_at}")
        if version < self.last and not self._may_go_back:
            self.faults.append(f"version {version} was read after version {self.last}")
        if version and version not in self.seen[-1:]:
            self.seen.append(version)
        self._may_go_back &= version == self.last
        self.last = version
        if self._how["apply"] == "map" and self.model["a"].dtype is torch.float32:  # others are copied
            for kept, snapshot in self._kept:
                if (values := self._values(snapshot)) != {float(kept)}:
                    self.faults.append(f"what was kept of version {kept} holds {values}")

    async def look(self) -> tuple[int, list[int], list[str]]:
        """Return the version that is read, all that were, and broken promises."""
        weights = self.weights
        if weights is None:
            if self.model and not self._order.locked():
                self._note(self.last)
        else:
            with self._told("a reader"):
                async with weights.reading(0.2) as version:
                    if version:
                        self._note(version)
        return self.last, self.seen, self.faults

    @contextlib.contextmanager
    def _told(self, who: str) -> Any:
        """Accept the errors of a version that has not come, does not fit, or has no sender any more."""
        try:
            yield
        except (DeadlineExceeded, ClosedError, PeerLost, WeightMismatch):
            pass
        except Exception as error:
            self.faults.append(f"{who} was told {error!r}")

    async def read(self) -> None:
        """Begin to read until ``release``."""
        if self.weights is None:
            return
        leaves = asyncio.Event()
        self._readers[asyncio.create_task(self._read(self.weights, leaves))] = leaves

    async def _read(self, weights: Any, leaves: asyncio.Event) -> None:
        with self._told("a reader who stays"):
            async with weights.reading(0.5) as version:
                self._read_now.append(weights)
                await leaves.wait()
                self._read_now.remove(weights)
                if version and self.weights is weights:  # the next one does not know this reader
                    self._note(version)

    async def release(self) -> None:
        readers, self._readers = self._readers, {}
        for leaves in readers.values():
            leaves.set()
        if readers:
            await asyncio.wait(readers)

    async def keep(self) -> None:
        """Keep a snapshot of the parameters."""
        if self.weights is not None and self.last:
            with self._told("a reader who keeps"):
                async with self.weights.reading(0.2) as version:
                    if version and not self._is_misfit:
                        self._kept.append((version, {name: tensor.detach() for name, tensor in self.model.items()}))
                        del self._kept[:-2]

    async def refuse(self) -> None:
        """Have the model fit no more."""
        if not self.model:
            return
        weights = self.weights
        async with contextlib.AsyncExitStack() as nobody_writes:
            is_sure = weights is None or weights in self._read_now
            if not is_sure and weights.version:
                with self._told("a reader"):
                    await nobody_writes.enter_async_context(weights.reading(0.2))
                    is_sure = True
            here = self.last if weights is None else weights.version or self.last
            self._stays_at = here if is_sure else None
            self._is_misfit = True
            self.model["b"] = torch.zeros(9)

    async def mend(self) -> None:
        """Have the model fit again."""
        async with self._order:
            if not self._is_misfit:
                return
            weights = self.weights
            is_read = weights is not None and weights.version
            async with weights.reading() if is_read else contextlib.nullcontext(self.last) as version:
                self.model["b"] = torch.full((700,), float(version), dtype=self.model["a"].dtype)
                self._is_misfit = False

    async def hand(self, version: int) -> None:
        """Have a call bring a version, in worlds where followers take that; an earlier one is refused."""
        if not hasattr(self.weights, "accept"):
            return

        def write() -> None:
            if self._is_misfit:
                raise ValueError("it does not fit")
            self._kept = [kept for kept in self._kept if not self._shares_memory(kept[1])]
            for tensor in self.model.values():
                tensor.fill_(float(version))
            self._handed.add(version)

        with self._told("who calls"), contextlib.suppress(ValueError):
            await self.weights.accept(write, version)

    def _shares_memory(self, snapshot: dict[str, torch.Tensor]) -> bool:
        """True of a snapshot taken while the model stood in its own memory, which calls write in place."""
        return any(kept.data_ptr() == self.model[name].data_ptr() for name, kept in snapshot.items())

    async def has(self, version: int) -> bool:
        """True if it has the version within some seconds."""
        with self._told("who waits for a version"):
            await self.weights.wait_version(version, 10.0)
        return bool(self.weights.version >= version)

    async def forget(self) -> None:
        """Let go of the memory that a process that has died has no more."""
        self.model.clear()
        self._kept.clear()

    async def ended(self, seconds: float) -> str:
        """Return how a wait for a version ends that never comes."""
        try:
            await self.weights.wait_version(1 << 20, seconds)
        except Exception as error:
            return type(error).__name__
        return "no error"
