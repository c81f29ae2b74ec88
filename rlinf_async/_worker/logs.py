"""Logging in workers: ``configure`` sets the level and line format; ``Logging`` is a mixin with ``log_info`` etc."""

from __future__ import annotations

import logging
import sys
from typing import Final

from rlinf_async._core.own_logger import own_logger

LEVEL: Final = "RLINF_LOG_LEVEL"  # environment variable with the lowest level that workers log (INFO)

NAME: Final = "RLinf"  # parent of all workers' loggers

# Logger for the framework's own messages about a worker, which are not part of the worker's output.
OWN: Final = f"{NAME}.rlinf_async"


def configure(group: str, rank: int, level: str | None) -> None:
    """Log to stdout as the given rank: ``[LEVEL HH:MM:SS group-Rank-r][file:line] message``.

    The framework's own messages go to stderr, without a file and line. An unknown level becomes INFO, with a warning.
    """
    # Escape a % in a group's name: the formatter would expand it.
    who = f"{group}-Rank-{rank}".replace("%", "%%")
    root, own = own_logger(NAME), own_logger(OWN)
    for logger, stream, place in ((root, sys.stdout, "[%(filename)s:%(lineno)d]"), (own, sys.stderr, "")):
        handler = logging.StreamHandler(stream)
        handler.setFormatter(logging.Formatter(f"[%(levelname)s %(asctime)s {who}]{place} %(message)s", "%H:%M:%S"))
        logger.handlers[:] = [handler]
        logger.propagate = False
    known = logging.getLevelNamesMapping()
    wanted = (level or "INFO").upper()
    root.setLevel(wanted if wanted in known else "INFO")
    if wanted not in known:
        own.warning("%s=%s is no level: it is one of %s; INFO is taken", LEVEL, level, ", ".join(known))


class Logging:
    """Mixin of ``Worker`` with logging methods."""

    _logger: logging.Logger
    _rank: int
    _world_size: int

    def log_debug(self, msg: str) -> None:
        """Log at level DEBUG, with the name of the worker."""
        self._logger.debug(msg, stacklevel=2)

    def log_info(self, msg: str) -> None:
        """Log at level INFO, with the name of the worker."""
        self._logger.info(msg, stacklevel=2)

    def log_warning(self, msg: str) -> None:
        """Log at level WARNING, with the name of the worker."""
        self._logger.warning(msg, stacklevel=2)

    def log_error(self, msg: str) -> None:
        """Log at level ERROR, with the name of the worker."""
        self._logger.error(msg, stacklevel=2)

    def log_on_first_rank(self, msg: str) -> None:
        """Log at level INFO, in the worker of rank 0 only."""
        if self._rank == 0:
            self._logger.info(msg, stacklevel=2)

    def log_on_last_rank(self, msg: str) -> None:
        """Log at level INFO, in the worker of the last rank only."""
        if self._rank == self._world_size - 1:
            self._logger.info(msg, stacklevel=2)
