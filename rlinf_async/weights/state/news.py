"""What a receiver has heard and not acted on yet."""

from __future__ import annotations

from collections import deque
from typing import Any

from rlinf_async.weights.state import words as say

Words = list[Any]


class News:
    """Words in the order in which they came; from any thread.

    Args:
        skips: of published versions that follow each other only the last counts.
    """

    def __init__(self, *, skips: bool) -> None:
        self._skips = skips
        self._words: deque[Words] = deque()

    def __bool__(self) -> bool:
        return bool(self._words)

    def add(self, words: Words) -> None:
        self._words.append(words)

    def next(self) -> list[Words]:
        """One word; or several published versions, of which only the last counts."""
        words = [self._words.popleft()]
        while self._skips and words[0][0] == say.PUBLISH and self._words and self._words[0][0] == say.PUBLISH:
            words.append(self._words.popleft())
        return words

    def put_back(self, words: list[Words]) -> None:
        """For whoever acts on them next."""
        self._words.extendleft(reversed(words))
