"""Worker with a Markov chain over words: learns from texts, and streams generated words."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import AsyncIterator

from rlinf_async import Worker


class Writer(Worker):
    """A Markov chain over words; each rank has its own random generator."""

    def __init__(self) -> None:
        super().__init__()
        self._followers: defaultdict[str, list[str]] = defaultdict(list)
        self._dice = random.Random(self._rank)

    def learn(self, text: str) -> int:
        """Add a text. Return the number of words that have a follower."""
        words = text.split()
        for word, follower in itertools.pairwise(words):
            self._followers[word].append(follower)
        return len(self._followers)

    async def generate(self, start: str, words: int) -> AsyncIterator[str]:
        """Yield up to ``words`` words after ``start``; fewer if a word has no follower."""
        word = start
        for _ in range(words):
            followers = self._followers.get(word)
            if not followers:
                return
            word = self._dice.choice(followers)
            yield word
