"""Workers whose methods are called by ``group.call(Worker.method, ...)``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from rlinf_async import Worker


class Scaling(Worker):
    def scaled(self, x: int, *, by: int = 2) -> int:
        """A number, scaled."""
        return x * by

    async def shifted(self, x: int) -> int:
        return x + self._rank

    async def counted(self, n: int) -> AsyncIterator[int]:
        for number in range(n):
            yield number

    def generated(self, n: int) -> Iterator[int]:
        yield from range(n)

    @staticmethod
    def halved(x: int) -> int:
        return x // 2

    @classmethod
    def named(cls, prefix: str) -> str:
        return prefix + cls.__name__

    def _hidden(self) -> None: ...


class Doubling(Scaling):
    def scaled(self, x: int, *, by: int = 4) -> int:
        return x * by


class Calling(Worker):
    """Has a method with the name of one of the group's."""

    def call(self, word: str) -> str:
        return word

    def other(self) -> Any:
        return "other"
