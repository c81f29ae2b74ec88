"""``Step``: the checks of one step of the GPU proof, each of which writes its facts."""

from __future__ import annotations

import faulthandler
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from tests.gpu.report import FAILED, OK, SKIPPED, Fact, append

FACTS_VARIABLE: Final = "RLINF_GPU_FACTS"
"""Path of the file to which the steps of a proof append their facts; without it, they print them."""


class Skip(Exception):
    """The reason for which a check cannot be made on this machine, and how to get a machine where it can."""


class Step:
    """One step, by its letter."""

    def __init__(self, letter: str) -> None:
        self.letter = letter

    def say(self, name: str, value: Any = None, unit: str = "", *, state: str = OK, seconds: float = 0.0) -> None:
        fact = Fact(self.letter, name, state, value, unit, round(seconds, 3))
        print(f"    {fact.state:8}{fact.name}: {fact.value} {fact.unit}", file=sys.stderr, flush=True)
        if path := os.environ.get(FACTS_VARIABLE):
            append(Path(path), fact)

    def run(self, checks: Sequence[Check]) -> int:
        """Run every check, whatever becomes of the others, and return the exit status of the step."""
        failed = False
        for check in checks:
            name, began = check.__name__.removeprefix("check_").replace("_", " "), time.monotonic()
            try:
                value, state = check(self), OK
            except Skip as skip:
                value, state = str(skip), SKIPPED
            except BaseException as error:
                traceback.print_exc()
                value, state, failed = f"{type(error).__name__}: {error}", FAILED, True
                if not isinstance(error, Exception):
                    self.say(name, value, state=FAILED)
                    raise
            finally:
                sys.stderr.flush()
            self.say(name, value, state=state, seconds=time.monotonic() - began)
        return 1 if failed else 0


Check: TypeAlias = Callable[[Step], Any]
"""Returns what it found, or None; raises ``Skip``, or any error if the claim does not hold."""


def main(letter: str, checks: Sequence[Check]) -> None:
    """Run a step as a program; its first argument is the deadline in seconds."""
    if len(sys.argv) > 1:
        faulthandler.dump_traceback_later(max(1.0, float(sys.argv[1]) - 3))
    sys.exit(Step(letter).run(checks))
