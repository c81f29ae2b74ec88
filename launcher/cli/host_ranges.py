"""Expansion of bracket ranges in host names, as in pdsh and Slurm (``gpu[01-03,20]``); lists are split at commas."""

from __future__ import annotations

import itertools
import re

from ..source_text import SourceSpan

MAX_HOSTS = 65536  # limit for one entry; a larger number is probably a typing error

_PIECE = re.compile(r"(?P<low>[0-9]{1,9})(?:-(?P<high>[0-9]{1,9}))?", re.ASCII)


def expand(entry: SourceSpan) -> tuple[str, ...]:
    """Return all names that an entry expands to, in order; the last bracket varies fastest.

    Numbers are zero-padded to the width of their range's first number.  Raises ConfigError for an invalid entry.
    """
    choices: list[list[str]] = []
    place, count = 0, 1
    while place < len(entry.text):
        opening = entry.text.find("[", place)
        plain = entry.cut(place, opening if opening >= 0 else None)
        if "]" in plain.text:
            raise entry.cut(place + plain.text.index("]")).error(
                "this bracket was never opened", "write a range as gpu[01-16]"
            )
        choices.append([plain.text])
        if opening < 0:
            break
        closing = entry.text.find("]", opening)
        if closing < 0:
            raise entry.cut(opening).error("this bracket is never closed", "write a range as gpu[01-16,20]")
        inside = entry.cut(opening + 1, closing)
        # Count before expanding: [0-999999999] must not exhaust the memory.
        count *= sum(1 + high - low for low, high, _ in _pieces(inside))
        if count > MAX_HOSTS:
            raise inside.error(f"this entry stands for {count} hosts, more than {MAX_HOSTS}", "check the last number")
        choices.append([str(n).zfill(width) for low, high, width in _pieces(inside) for n in range(low, high + 1)])
        place = closing + 1
    return tuple("".join(parts) for parts in itertools.product(*choices))


def split(entry: SourceSpan) -> list[SourceSpan]:
    """Split an entry at the commas outside brackets."""
    parts, begin, depth = [], 0, 0
    for place, letter in enumerate(entry.text):
        if letter == "[":
            depth += 1
        elif letter == "]":
            depth = max(0, depth - 1)
        elif letter == "," and depth == 0:
            parts.append(entry.cut(begin, place))
            begin = place + 1
    parts.append(entry.cut(begin))
    return parts


def _pieces(inside: SourceSpan) -> list[tuple[int, int, int]]:
    """Return (low, high, width) of each range in ``01-16,20``."""
    pieces = []
    for piece in split(inside):
        match = _PIECE.fullmatch(piece.text)
        if match is None:
            raise piece.error(f"{piece.text!r} is not a range", "write numbers, as in gpu[01-16,20]")
        low, high = match["low"], match["high"] or match["low"]
        if int(low) > int(high):
            raise piece.error(f"the range {piece.text!r} runs backwards", f"write {high}-{low}")
        pieces.append((int(low), int(high), len(low)))
    return pieces
