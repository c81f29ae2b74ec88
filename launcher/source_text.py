"""Spans of user text (hosts files, flags, variables) with file and line, for errors that quote their location."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rlinf_async.errors import ConfigError

_MAX_SHOWN_CHARS = 100  # characters of a line that an error shows around the mark

_WORD = re.compile(r"""(?:[^\s"']|"[^"]*"|'[^']*')+""")
_QUOTED = re.compile(r"""(["'])(.*?)\1""")


@dataclass(frozen=True)
class SourceSpan:
    """Characters (``text``) of a ``line``, beginning at offset ``start``; ``number`` counts lines from 1."""

    text: str
    source: str
    number: int
    start: int
    line: str

    @property
    def where(self) -> str:
        return f"{self.source}:{self.number}"

    def cut(self, start: int, stop: int | None = None) -> SourceSpan:
        return SourceSpan(self.text[start:stop], self.source, self.number, self.start + start, self.line)

    def words(self) -> Iterator[SourceSpan]:
        """Yield words up to one that begins with ``#``, keeping quotes and the blanks in them.  Raises ConfigError."""
        place = 0
        while place < len(self.text):
            if self.text[place].isspace():
                place += 1
                continue
            if self.text[place] == "#":
                return
            match = _WORD.match(self.text, place)
            if match is None:
                raise self.cut(place).error("this quote is never closed", f"end it with {self.text[place]}")
            yield self.cut(place, match.end())
            place = match.end()

    def unquoted(self) -> str:
        return _QUOTED.sub(r"\2", self.text)

    def error(self, problem: str, fix: str) -> ConfigError:
        """Return an error that shows the line, marks this span in it, and states the fix."""
        first = max(0, self.start - _MAX_SHOWN_CHARS // 2)
        view = self.line[first : first + _MAX_SHOWN_CHARS]
        before, width = self.start - first, max(1, len(self.text))
        # Keep tabs, so that the mark is below the marked text.
        indent = "".join("\t" if letter == "\t" else " " for letter in view[:before])
        mark = "^" * max(1, min(width, len(view) - before))
        gutter = " " * len(str(self.number))
        return ConfigError(
            f"{self.where}:{self.start + 1}: {problem}\n"
            f"  {self.number} | {view}\n"
            f"  {gutter} | {indent}{mark}\n"
            f"  fix: {fix}"
        )


def lines(text: str, source: str) -> Iterator[SourceSpan]:
    # Not by splitlines(), which knows more line ends than an editor, such as the form feed.
    for number, line in enumerate(text.split("\n"), start=1):
        span = SourceSpan(line, source, number, 0, line)
        if "\0" in line:
            raise span.cut(line.index("\0")).error("a zero byte stands here", "delete it")
        yield span


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'slots'?"`` if a known word is similar, else an empty string."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
