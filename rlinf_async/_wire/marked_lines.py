"""A parser for a subprocess's stdout, in which lines with a marker and a JSON object are mixed with noise."""

from __future__ import annotations

import json
from collections import deque
from typing import Any, Final

MAX_LINES: Final = 40
MAX_LINE_CHARS: Final = 2000

_MAX_LINE_BYTES: Final = 16 * 1024 * 1024


class MarkedLines:
    """A parser that extracts JSON objects from bytes, one per marked line; the reader takes them from ``messages``."""

    def __init__(self, marker: str) -> None:
        self.messages: deque[dict[str, Any]] = deque()
        self.noise: deque[str] = deque(maxlen=MAX_LINES)
        self._marker = marker.encode()
        self._rest = bytearray()

    def feed(self, data: bytes) -> None:
        searched = len(self._rest)
        self._rest += data
        if b"\n" in data:
            *lines, rest = self._rest.split(b"\n")
            self._rest = rest
            for line in lines:
                self._on_line(line)
        elif searched > _MAX_LINE_BYTES:
            # Drop foreign output that has no line ends, but keep its last bytes, which may be the start of a marker.
            del self._rest[: -len(self._marker)]

    def _on_line(self, line: bytearray) -> None:
        noise, marker, text = line.partition(self._marker)
        if marker:
            try:
                message = json.loads(text)
            except ValueError:
                message = None
            if isinstance(message, dict):
                self.messages.append(message)
            else:
                noise = line
        if noise.strip():
            self.noise.append(noise[-MAX_LINE_CHARS:].decode(errors="replace").rstrip())
