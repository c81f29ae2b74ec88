"""Broken promises of cleanups, and of waits for several works."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from tests.simulation.judgement import Violation
from tests.simulation.operations import Operation
from tests.simulation.waiting_families import ends_in, fails_in

_MARGIN_S: Final = 3.0
"""Seconds of a wait beyond the moment at which it is to end."""


def judge_cleanups(book: Sequence[Operation], killed: set[str]) -> Iterator[Violation]:
    """A cleanup that has begun ends, once, unless its process dies; each call that is given up begins one."""
    running = {each.facts[0]: each.who for each in book if each.kind == "k_run"}
    begun = Counter(each.facts[0] for each in book if each.kind == "k_clean")
    yield from (
        Violation("twice", f"cleanup {nonce} was begun {count} times") for nonce, count in begun.items() if count > 1
    )
    for each in book:
        if each.kind == "k_clean" and each.who not in killed and (not each.ended or each.error is not None):
            yield Violation("left", f"{each}: it was to end")
        elif each.kind == "k_clean" and each.error is not None and each.error[0] == "CancelledError":
            yield Violation("left", f"{each}: a dead process is not cancelled")
        elif each.kind == "k_call" and each.ended:
            nonce, _, first = each.facts
            if each.value == "ended" and not first.startswith("cancel"):  # who closes a stream has its end
                yield Violation("error", f"{each}: its method never ends by itself")
            if nonce in running and running[nonce] not in killed and not begun[nonce]:
                yield Violation("left", f"{each} was given up, and runs on")


def judge_combinations(book: Sequence[Operation], is_calm: bool) -> Iterator[Violation]:
    """A wait for several works ends with all of them, or with the first failure, which cancels what it can."""
    if not is_calm:
        return
    parts: dict[int, list[tuple[int, float, bool]]] = defaultdict(list)
    ended: dict[int, tuple[float, str, object]] = {}
    running, cancelled = set(), set()
    for each in book:
        if each.kind == "c_part":
            wait, *facts = each.facts
            parts[wait].append(tuple(facts))
        elif each.kind == "c_ended":
            wait, *facts = each.facts
            ended[wait] = tuple(facts)
        elif each.kind == "c_run":
            running.add(each.facts[0])
        elif each.kind == "c_cancelled":
            cancelled.add(each.facts[0])
    for each in book:
        if each.kind != "c_wait" or each.facts[0] not in ended:
            continue
        wait, of, how, patience = each.facts
        seconds, error, value = ended[wait]
        failing = min((fails for part in of if (fails := fails_in(part)) is not None), default=None)
        lasting = [ends_in(part) for part in of]
        last = None if None in lasting else max(lasting)  # type: ignore[type-var]
        due = min(moment for moment in (failing, patience, last) if moment is not None)
        if seconds > due + _MARGIN_S:
            yield Violation("hang", f"{each} was to end after {due:g} s, and took {seconds:.1f} s")
        if error not in ("", "LookupError", "DeadlineExceeded", "TimeoutError"):
            yield Violation("error", f"{each} ended with {error}")
        elif not error and (failing is not None or value is not True):
            yield Violation("foreign", f"{each} is no result of its parts")
        elif error == "TimeoutError" and patience is None:
            yield Violation("foreign", f"{each} had no deadline")
        elif error in ("LookupError", "DeadlineExceeded") and failing is None:
            yield Violation("foreign", f"{each}, and no part of it fails")
        if error and not (how == "then" and error == "TimeoutError"):
            for nonce, runs_s, is_followed in parts[wait]:
                if nonce in running and not is_followed and runs_s > due + _MARGIN_S and nonce not in cancelled:
                    yield Violation("left", f"call {nonce} of {each} runs on")
