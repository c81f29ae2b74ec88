"""Numbered messages between a sender and one receiver by a torch store, and tensors by a process group of their own.

    NODE_<rank>_in/<n>     sender → receiver   the head of message n; its tensor follows by the group
    NODE_<rank>_count      sender → receiver   n of the last message
    NODE_<rank>_out/<n>    receiver → sender   the answer to it

Nothing is overwritten by a second message, and an answer is found by its number.  All methods block: each side calls
them in a thread of its own.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

import torch
from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # torch does not list it

from rlinf_async.core import frames
from rlinf_async.errors import ConfigError, DeadlineExceeded, PeerLost

CLOSED: Final = b"closed"


class StoreMail:
    """One side of it.

    Args:
        store: any store of torch.distributed that can be cloned; all receivers may share it.
        rank: the receiver's, from 1 on.
        is_sender: which side this is.
        backend: ``"gloo"``, or ``"nccl"`` for tensors that travel from GPU to GPU.
    """

    def __init__(self, store: Any, rank: int, is_sender: bool, backend: str) -> None:
        if backend not in ("gloo", "nccl"):
            raise ConfigError(f"backend= is 'gloo' or 'nccl'; got {backend!r}")
        self._store = store.clone()  # a client serves one caller at a time
        self._shared = store
        self._name = f"NODE_{rank}"
        self._me = 0 if is_sender else 1
        self._backend = backend
        self._group: Any = None
        self._generation = 0
        self._number = 0
        self._sent: dict[int, tuple[Any, Any]] = {}

    # -- the sender ---------------------------------------------------------------------------------------------

    def send(self, head: dict[str, Any], tensor: torch.Tensor, timeout: float, wait: bool) -> int:
        """Sends a message; returns its number.  The tensor must not change until it is answered."""
        if self._group is None:
            self._generation += 1
        self._number += 1
        number = self._number
        facts = {**head, "generation": self._generation, "nbytes": tensor.numel()}
        self._store.set(self._key("in", number), frames.pack(facts))
        self._store.set(f"{self._name}_count", str(number))
        try:
            group = self._connect(timeout)
            work = group.send([self._moved(tensor)], 1, 0)
            self._sent[number] = (work, tensor)
            if wait:
                work.wait()
        except RuntimeError as error:
            self.part()
            raise self._translated(error, timeout) from None
        return number

    def wait_answer(self, number: int, timeout: float) -> bytes:
        """
        Raises:
            DeadlineExceeded: there is none; whatever the receiver does with the message, the next one takes another
                connection.
        """
        key = self._key("out", number)
        answer = self._wait(key, timeout)
        self._sent.pop(number, None)
        if answer is None:
            self.part()
            raise DeadlineExceeded(f"{self._name} has not answered message {number} within {timeout:g} s")
        self._store.delete_key(key)
        return answer

    # -- the receiver -------------------------------------------------------------------------------------------

    def next_head(self) -> dict[str, Any] | None:
        """Waits for a message, as long as it takes; None once ``wake`` was called."""
        if not self._number:
            self._number = self._first()
        key = self._key("in", self._number)
        found = None
        while found is None:
            found = self._wait(key, 3600.0)
        if found == CLOSED:
            return None
        self._store.delete_key(key)
        self._store.delete_key(self._key("out", self._number - 1))  # which nobody may have asked for
        head: dict[str, Any] = frames.unpack(found)
        return head

    def receive(self, head: dict[str, Any], timeout: float) -> torch.Tensor:
        """The tensor of the message whose head was received last; the next one is the following message."""
        if head["generation"] != self._generation:
            self.part()
            self._generation = head["generation"]
        tensor = torch.empty(head["nbytes"], dtype=torch.uint8, device="cuda" if self._backend == "nccl" else "cpu")
        try:
            self._connect(timeout).recv([tensor], 0, 0).wait()
        except RuntimeError as error:
            self.part()
            raise self._translated(error, timeout) from None
        return tensor

    def answer(self, text: bytes) -> None:
        self._store.set(self._key("out", self._number), text)
        self._number += 1

    def _first(self) -> int:
        """A receiver that is started again begins with what has not been taken."""
        count = f"{self._name}_count"
        last = int(self._store.get(count)) if self._store.check([count]) else 0
        return last if last and self._store.check([self._key("in", last)]) else last + 1

    # -- both ---------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Has ``next_head`` return; from another thread."""
        other = self._shared.clone()
        other.set(self._key("in", self._number or self._first()), CLOSED)

    def part(self) -> None:
        """Ends the connection; the next message takes another one."""
        group, self._group = self._group, None
        self._sent.clear()
        if group is not None:
            group.abort()

    def _connect(self, timeout: float) -> Any:
        if self._group is None:
            store = PrefixStore(f"{self._name}/{self._generation}", self._store)
            self._group = _make(self._backend, store, self._me, timedelta(seconds=timeout))
        return self._group

    def _wait(self, key: str, timeout: float) -> bytes | None:
        from torch.distributed import DistStoreError

        try:
            self._store.wait([key], timedelta(seconds=timeout))
        except DistStoreError:
            return None
        found: bytes = self._store.get(key)
        return found

    def _key(self, what: str, number: int) -> str:
        return f"{self._name}_{what}/{number}"

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to("cuda") if self._backend == "nccl" else tensor

    def _translated(self, error: RuntimeError, timeout: float) -> Exception:
        text = str(error).splitlines()[0]
        if "timeout" in text.lower() or "timed out" in text.lower():
            return DeadlineExceeded(f"{self._name} was not reached by {self._backend} within {timeout:g} s: {text}")
        return PeerLost(f"{self._name} was lost by {self._backend}: {text}")


def _make(backend: str, store: Any, rank: int, timeout: timedelta) -> Any:
    if backend == "nccl":
        from torch.distributed import ProcessGroupNCCL

        options = ProcessGroupNCCL.Options()
        options._timeout = timeout
        return ProcessGroupNCCL(store, rank, 2, options)
    from torch.distributed import ProcessGroupGloo

    return ProcessGroupGloo(store, rank, 2, timeout)
