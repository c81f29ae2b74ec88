"""Sanitiser for lines of foreign output: removes control sequences and, on request, colours."""

from __future__ import annotations

import re
from typing import Final

_SUSPICIOUS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

_COLOUR: Final = re.compile(r"\x1b\[[0-9;:]*m")

_CONTROL: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: moves the cursor, erases, asks for answers
    r"|(?:\x1b[PX\]^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x80-\x9f]*+(?:\x07|\x1b\\|\x9c|$)"  # OSC, DCS: title, clipboard
    r"|\x1b[ -/]*[0-~]"  # short sequences: reset, character sets
    r"|[\x00-\x08\x0a-\x1f\x7f-\x9f]"
)

_RESET: Final = "\x1b[0m"


def printable(line: str) -> str:
    """Return a line without control characters, as a terminal would show it.

    Text before the last carriage return is dropped. A colour that is still on at the end of the line is reset.
    """
    if _SUSPICIOUS.search(line) is None:
        return line
    line = line.rstrip("\r").rpartition("\r")[2]  # progress bars overwrite their line
    pieces = []
    start = 0
    for colour in _COLOUR.finditer(line):
        pieces += [_CONTROL.sub("", line[start : colour.start()]), colour.group()]
        start = colour.end()
    pieces.append(_CONTROL.sub("", line[start:]))
    text = "".join(pieces)
    return text + _RESET if start and not text.endswith((_RESET, "\x1b[m")) else text


def plain(line: str) -> str:
    return _COLOUR.sub("", printable(line))
