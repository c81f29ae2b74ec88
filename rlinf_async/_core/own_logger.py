"""Loggers of the framework, whose warnings appear however a script configures logging globally."""

from __future__ import annotations

import logging
from typing import Final

# Topmost loggers of the framework; only their own configuration suppresses the framework's records.
NAMES: Final = ("rlinf_async", "rlinf_launcher", "RLinf")

_LAST_RESORT: Final = logging.lastResort


def own_logger(name: str) -> logging.Logger:
    """Return the logger of that name as an ``OwnLogger``; every module of the framework uses it."""
    logger = logging.getLogger(name)
    logger.__class__ = OwnLogger
    return logger


class OwnLogger(logging.Logger):
    """Logger whose warnings and errors only the framework's own loggers can suppress (by level, handler or filter).

    Scripts and libraries configure logging for their own purposes: ``dictConfig`` disables all existing loggers,
    ``logging.disable`` and the root's level affect all records, and the root's handlers may ignore framework records.
    A warning that no handler accepts goes to stderr.
    """

    @property
    def disabled(self) -> bool:
        return False

    @disabled.setter
    def disabled(self, value: bool) -> None:
        """Ignore the value: ``dictConfig`` and ``fileConfig`` set it on every logger that they do not name."""

    def isEnabledFor(self, level: int) -> bool:
        if level < logging.WARNING:
            return super().isEnabledFor(level)
        return level >= next((logger.level for logger in self._below_root() if logger.level), logging.WARNING)

    def callHandlers(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.WARNING or _LAST_RESORT is None or self._takes(record):
            super().callHandlers(record)
        else:
            _LAST_RESORT.handle(record)

    def _takes(self, record: logging.LogRecord) -> bool:
        for logger in self._below_root():
            if logger.handlers:
                # The user chose these handlers for the framework, so a record that they ignore must not go to stderr.
                return True
            if not logger.propagate:
                return False
        handlers = logging.root.handlers
        return any(record.levelno >= each.level and not isinstance(each, logging.NullHandler) for each in handlers)

    def _below_root(self) -> list[logging.Logger]:
        found: list[logging.Logger] = [self]
        while (parent := found[-1].parent) is not None and parent is not logging.root:
            found.append(parent)
        return found
