"""CUDA side streams, with recorders."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from rlinf_async._transports.devices.gpu_tensors import SideStream

GPU = torch.device("cuda", 0)


class Streams:
    """CUDA's, of which one is current: what was asked of them, in order."""

    def __init__(self) -> None:
        self.current = "default"
        self.calls: list[str] = []
        self._made = 0

    def make(self, device: torch.device) -> Any:
        self._made += 1
        name, calls = f"stream {self._made}", self.calls

        class Stream:
            def __repr__(self) -> str:
                return name

            def synchronize(self) -> None:
                calls.append(f"{name} is done")

        return Stream()

    @contextlib.contextmanager
    def enter(self, stream: Any) -> Iterator[None]:
        before, self.current = self.current, str(stream)
        yield
        self.current = before


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Streams:
    found = Streams()
    monkeypatch.setattr(torch.cuda, "Stream", found.make)
    monkeypatch.setattr(torch.cuda, "stream", found.enter)
    return found


def test_each_has_one_stream_which_is_current_inside_only(streams: Streams) -> None:
    one, other = SideStream(GPU), SideStream(GPU)
    for side, name in ((one, "stream 1"), (other, "stream 2"), (one, "stream 1")):
        with side.entered():
            assert streams.current == name
        assert streams.current == "default"
    assert streams.calls == []


def test_what_was_begun_is_done_at_the_end_also_after_an_error(streams: Streams) -> None:
    side = SideStream(GPU)
    with side.until_done():
        streams.calls.append(f"copy in {streams.current}")
    with contextlib.suppress(ZeroDivisionError), side.until_done():
        raise ZeroDivisionError
    assert streams.calls == ["copy in stream 1", "stream 1 is done", "stream 1 is done"]


def test_of_the_cpu_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: pytest.fail("this brings CUDA up"))
    with SideStream(torch.device("cpu")).until_done():
        pass
