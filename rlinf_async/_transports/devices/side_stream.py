"""``SideStream``: a CUDA stream of a link's own, so that its copies do not queue behind the default stream.

A thread that asks for none has the device's default stream, which is also that of whoever computes there: what it
copies would wait for all that they have queued, and what they queue next for the copies.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

_cuda: Any = torch.cuda  # which has few annotations


class SideStream:
    """A stream of one device, made at its first use; of the CPU there is none, and nothing happens.

    Memory that is allocated in it is its own: whoever uses it in another stream says so (``record_stream``), or has
    ended before it is let go of.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """It is the thread's current stream."""
        if self._device.type != "cuda":
            yield
            return
        if self._stream is None:
            self._stream = _cuda.Stream(self._device)
        with torch.cuda.stream(self._stream):
            yield

    @contextlib.contextmanager
    def until_done(self) -> Iterator[None]:
        """The same, and at the end, also after an error, all that was begun in it is done."""
        with self.entered():
            try:
                yield
            finally:
                if self._stream is not None:
                    self._stream.synchronize()
