"""Links within one process, as if the other end were on another machine."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from rlinf_async.work import Work
from tests._support.weight_parts import LocalLink


class FarLink(LocalLink):
    """Its tensors are copied when both ends have named theirs."""

    node = 1
    waiting: dict[int, list[tuple[Any, Any, Work[None]]]]
    """By line: tensors for which the other end has not asked, or that it has not sent, and of which end."""
    both: threading.Lock

    @classmethod
    def far_pair(cls) -> tuple[FarLink, FarLink]:
        ends = cls("the receiver"), cls("the sender")
        ends[0]._other, ends[1]._other = ends[1], ends[0]
        ends[0].waiting = ends[1].waiting = defaultdict(list)
        ends[0].both = ends[1].both = threading.Lock()
        return ends

    def send_tensor(self, tensor: Any, line: int, receiver: Any = None) -> Work[None]:
        return self._meet(line, tensor, lambda mine, theirs: theirs.copy_(mine))

    def receive_tensor(self, tensor: Any, line: int, sender: Any = None) -> Work[None]:
        return self._meet(line, tensor, lambda mine, theirs: mine.copy_(theirs))

    def _meet(self, line: int, mine: Any, copy: Callable[[Any, Any], Any]) -> Work[None]:
        work: Work[None] = Work()
        with self.both:
            waiting = self.waiting[line]
            if not waiting or waiting[0][0] is self:
                waiting.append((self, mine, work))
                return work
            _, theirs, met = waiting.pop(0)
        copy(mine, theirs)
        met._settle()
        work._settle()
        return work
