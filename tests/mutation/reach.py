"""``Reach``: the tests that run a line of the product, recorded once for all mutants."""

from __future__ import annotations

import json
import pickle
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple

from tests.mutation.mutants import digest, modules

_SHORT_S: Final = 0.2
"""Tests of pure state, which see the most, take less."""


class _Reached(NamedTuple):
    test: str
    seconds: float
    marks: bytes
    """``LineMarks.read()``, compressed."""

    @property
    def file(self) -> str:
        return self.test.partition("::")[0]


class Reach:
    """What ``reach_plugin`` recorded of a checkout.

    Args:
        offsets: place in the marks of each module's line 0.
        digests: the modules' code at that time.
    """

    def __init__(self, offsets: dict[str, int], digests: dict[str, str], tests: Sequence[_Reached]) -> None:
        self._offsets = offsets
        self._digests = digests
        self._tests = tests

    @classmethod
    def of(cls, checkout: Path) -> Reach:
        """Gather the records that the processes of pytest have left in a checkout's build folder."""
        records = sorted((checkout / "build").glob("reach-*.pickle"))
        by_path = json.loads(records[0].with_suffix(".json").read_text())
        offsets = {Path(name).relative_to(checkout).as_posix(): offset for name, offset in by_path.items()}
        digests = {name: digest((checkout / name).read_bytes()) for name in modules(checkout)}
        return cls(offsets, digests, [_Reached(*each) for path in records for each in _load(path)])

    def save(self, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(pickle.dumps((self._offsets, self._digests, [tuple(each) for each in self._tests])))

    @classmethod
    def load(cls, path: Path) -> Reach:
        offsets, digests, tests = pickle.loads(path.read_bytes())
        return cls(offsets, digests, [_Reached(*each) for each in tests])

    def tests(self, module: str, line: int, source: bytes, seconds: float) -> list[str]:
        """Return tests that run a line: those of the module's own file and short ones, then the shortest of each file.

        Tests of the module's own file need to run any of its lines only, because a line that runs at import is run by
        tests with processes of their own. If the module's code has changed since, so it is with all tests.

        Args:
            seconds: limit on the sum of their durations.
        """
        start = self._offsets[module]
        end = start + source.count(b"\n") + 2
        own = f"test_{PurePosixPath(module).stem}"
        is_recorded = self._digests[module] == digest(source)
        found: list[_Reached] = []
        for each in self._tests:
            marks = zlib.decompress(each.marks)
            if any(marks[start:end]) and (not is_recorded or marks[start + line] or own in each.file):
                found.append(each)
        found.sort(key=lambda each: each.seconds)
        setups: dict[str, float] = {}
        for each in self._tests:  # the first test of a file sets up for the others
            setups.setdefault(each.file, each.seconds)
        in_file = Counter[str]()
        ranks: dict[str, int] = {}
        for each in found:
            in_file[each.file] += 1
            is_short = max(each.seconds, setups[each.file]) < _SHORT_S
            ranks[each.test] = 0 if own in each.file or is_short else in_file[each.file]
        found.sort(key=lambda each: ranks[each.test])
        chosen: list[str] = []
        for each in found:
            seconds -= each.seconds + setups.pop(each.file, 0.0)
            if seconds < 0 and chosen:
                break
            chosen.append(each.test)
        return chosen


def _load(path: Path) -> Iterator[tuple[Any, ...]]:
    with open(path, "rb") as file:
        while True:
            try:
                yield pickle.load(file)
            except EOFError:
                return
