"""Stacks of a process that does not answer, as faulthandler writes them: the signal that requests them."""

from __future__ import annotations

import signal
from typing import Final

SIGNAL: Final = signal.SIGRTMAX - 3
"""Has a process write the stacks of all its threads into a pipe of its own.

A process whose handler is not installed dies of it: look at ``SigCgt`` in ``/proc/PID/status`` first.
"""
