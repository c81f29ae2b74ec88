"""Broken promises of device locks and concurrent methods."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from tests.simulation.judgement import GIVEN_UP, Violation
from tests.simulation.operations import Operation


def judge_locks(book: Sequence[Operation], is_calm: bool, node_died: bool) -> Iterator[Violation]:
    """One process at a time has a device; what a dead one had is free, and not before it is dead."""
    holders: dict[int, Counter[tuple[str, int]]] = {}
    if node_died:
        return
    for each in book:
        if each.kind == "killed":
            for of in holders.values():
                for holder in [holder for holder in of if holder[0] == each.facts[0]]:
                    del of[holder]
        if each.kind == "l_hold" and is_calm and each.ended and each.value is None and each.error is None:
            yield Violation("lost", f"{each} has ended without a word")
        if each.kind == "l_stays":
            yield Violation("left", f"{each}: nobody has it there")
        if each.kind not in ("l_has", "l_frees"):
            continue
        _, devices, token = each.facts
        me = each.who, token
        for device in devices:
            of = holders.setdefault(device, Counter())
            if each.kind == "l_frees":
                of[me] -= 1
                if of[me] <= 0:
                    del of[me]
                continue
            others = [other for other in of if other != me]
            if others:
                yield Violation("two", f"device {device} is {me}'s, and {others} have it")
            of[me] += 1


def judge_concurrent(
    book: Sequence[Operation], is_calm: bool, killed: set[str], node_died: bool
) -> Iterator[Violation]:
    """Concurrent calls run once, are cancelled where they run, and raise what their method raises."""
    runs = Counter(each.facts[0] for each in book if each.kind == "m_run")
    cancelled = {each.facts[0] for each in book if each.kind == "m_cancelled"}
    # The others of a meeting wait in vain for one that a ``cancel`` of the program has ended.
    given_up = {
        each.facts[0]
        for each in book
        if each.kind == "m_meet" and (not each.ended or (each.error and each.error[0] == "CancelledError"))
    }
    for each in book:
        if each.kind == "m_meet" and is_calm and each.error is not None and each.facts[0] not in given_up:
            yield Violation("beside", f"{each}: not all of them ran at once")
        if each.kind in ("m_call", "m_stay", "m_refuse"):
            nonce, target = each.facts
            if runs[nonce] > 1:
                yield Violation("twice", f"{each} has run {runs[nonce]} times")
            lives = not node_died and target not in killed
            if each.kind == "m_stay" and lives and runs[nonce] and each.ended and nonce not in cancelled:
                yield Violation("left", f"{each} was given up, and runs on")
            if each.kind == "m_call" and each.ended and each.error is None and not runs[nonce]:
                yield Violation("lost", f"{each} has not run")
            if each.kind == "m_refuse" and each.ended and each.error is None and each.value != "LookupError":
                yield Violation("lost", f"{each} was to raise")
            if is_calm and each.error is not None and each.error[0] not in GIVEN_UP:
                yield Violation("error", str(each))
