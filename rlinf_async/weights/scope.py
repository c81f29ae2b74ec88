"""``Scope``: a worker's use of one set of named weights, from construction until ``close``."""

from __future__ import annotations

import threading
from asyncio import _get_running_loop as running_loop
from collections.abc import Sequence
from typing import Any, ClassVar, Final, Self

from rlinf_async._worker.context import require_exchange
from rlinf_async.errors import ClosedError
from rlinf_async.weights.waiting.execution import SyncAdapter, outlast
from rlinf_async.weights.waiting.ownership import OwnerProcess
from rlinf_async.work import Work

_lock: Final = threading.Lock()

_LONGEST_REASON: Final = 1000
"""Maximum number of characters of an error sent to the other side."""


class Scope:
    """A block for ``async with`` in a coroutine and ``with`` elsewhere; without a block, call ``close()``.

    Args:
        name: name of the weights.
        groups: groups of the workers at the other end.

    Raises:
        RuntimeError: this process is not a worker; or the name is already in use with one of these groups.
    """

    _use: ClassVar[str]
    """Description of the use, for errors."""
    _open: ClassVar[dict[tuple[str, str], Scope]] = {}

    def __init__(self, name: str, groups: Sequence[str]) -> None:
        require_exchange()
        self._name = name
        self._process = OwnerProcess()
        self._is_closed = False
        self._failure = ""
        """Text of the error that ended the block."""
        self._ended: Work[None] = Work()
        self._adapter = SyncAdapter()
        self._lines = dict.fromkeys(((group, name) for group in groups), self)
        # Two links to one worker on streams of the same name would take each other's messages and drop them:
        # tests/weights/test_publish.py::test_a_name_is_in_use_once_at_a_time_with_each_group
        with _lock:
            for line in self._lines.keys() & self._open.keys():
                if not self._open[line]._process.is_here:  # the entry belongs to this child's parent
                    continue
                raise RuntimeError(
                    f"weights named '{name}' are {self._open[line]._use} group '{line[0]}' by this worker already: "
                    "close that one first, or give this one another name=, at both ends"
                )
            self._open.update(self._lines)

    # -- implemented by each kind of scope -------------------------------------------------------------------------

    async def _enter(self) -> None:
        raise NotImplementedError

    async def _leave(self) -> None: ...

    async def _end(self) -> None:
        raise NotImplementedError

    # -- life ---------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if not self._process.is_here:
            raise self._process.forked(repr(self))
        if self._is_closed:
            raise ClosedError(f"{self!r} is closed")

    def close(self) -> Any:
        """End the use; the other side keeps its version. Idempotent; in a coroutine, return a ``Work``."""
        return self._adapter.run(self._close(), f"the end of {self!r}", abandonable=False)

    async def _close(self) -> None:
        if not self._process.is_here:
            return
        if self._is_closed:
            await self._ended.async_wait()
            return
        self._is_closed = True
        try:
            await self._end()
        finally:
            self._give_name_back()
            self._ended._settle()

    def _give_name_back(self) -> None:
        with _lock:
            for line in self._lines:
                del self._open[line]

    async def __aenter__(self) -> Self:
        try:
            await self._enter()
        except BaseException as error:
            self._fail(type(error), error)
            await outlast(self.close())
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None = None, *_: object) -> None:
        try:
            if kind is None:
                await self._leave()
        except BaseException as failure:
            self._fail(type(failure), failure)
            raise
        else:
            self._fail(kind, error)
        finally:
            await outlast(self.close())

    def _fail(self, kind: type[BaseException] | None, error: BaseException | None) -> None:
        if kind is not None:
            self._failure = f"{kind.__name__}: {error}"[:_LONGEST_REASON]

    def __enter__(self) -> Self:
        if running_loop() is not None:
            raise RuntimeError(f"`with` would block the loop that runs here: `async with` {self!r}")
        self._adapter.run(self.__aenter__(), f"the beginning of {self!r}")
        return self

    def __exit__(self, *exc_info: Any) -> None:
        try:
            self._adapter.run(self.__aexit__(*exc_info), f"the end of {self!r}")
        finally:
            self._adapter.release()
