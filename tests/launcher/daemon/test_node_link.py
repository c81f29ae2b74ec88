"""Bodies from another node at a lack of local resources."""

from __future__ import annotations

import errno
import os
from typing import Any
from unittest.mock import Mock

import pytest

from rlinf_async._core import frames
from rlinf_async._core.pool import Pool, PooledSegment
from rlinf_async._core.segment import close_fds
from rlinf_launcher.daemon.node_link import _HEADER, NodeLink

from .test_daemon_faults import Link


@pytest.mark.parametrize(("of", "step"), [(Pool, "borrow"), (PooledSegment, "hand_out")], ids=str)
async def test_a_body_without_memory_is_reported_and_ends_no_link(
    monkeypatch: pytest.MonkeyPatch, of: type, step: str
) -> None:
    came: list[Any] = []

    def on_frame(node_link: NodeLink, frame: list[Any], fds: list[int]) -> None:
        came.append((frame[1], frame[-1]))
        close_fds(fds)

    pool = Pool(0)
    node_link = NodeLink(1, "far", Link(), on_frame, lambda *_: None, pool)
    worker, here = frames.endpoint(1, 3), frames.endpoint(0, 2)
    replies = [(frames.REPLY, 0, worker, here, call, 0, 0, [call, 8]) for call in (1, 2)]
    node_link._control(b"".join(map(frames.new_packer().pack, replies)))
    before = os.listdir("/proc/self/fd")
    with monkeypatch.context() as short:
        short.setattr(of, step, Mock(side_effect=OSError(errno.EMFILE, "no descriptor is free")))
        node_link._bulk(_HEADER.pack(1, 8, 0) + b"body")
        node_link._bulk(_HEADER.pack(1, 8, 4) + b"rest")
    node_link._bulk(_HEADER.pack(2, 8, 0) + b"the nex")
    assert len(came) == 1, "a byte is lacking"
    node_link._bulk(_HEADER.pack(2, 8, 7) + b"t")
    (refused, why), passed = came
    assert (refused, passed, node_link.over) == (0, (1, 8), None)
    assert why.startswith("8 bytes from node 1 could not be taken in: [Errno 24] no descriptor is free (it may open ")
    pool.close()
    assert len(os.listdir("/proc/self/fd")) <= len(before)
