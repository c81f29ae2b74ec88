"""Broken promises of channels with keys, bounds and batches."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from tests.simulation.acts_of_queues import Queue
from tests.simulation.crew import PADDING
from tests.simulation.judgement import GIVEN_UP, Violation
from tests.simulation.operations import Operation


def judge_queues(
    book: Sequence[Operation], queues: Sequence[Queue], is_calm: bool, killed: set[str], node_died: bool
) -> list[Violation]:
    """Each item once, whole, in its own queue and order; bounds hold; nothing accepted is lost."""
    found = []
    for queue in queues:
        mine = [each for each in book if each.kind in ("insert", "take") and each.facts[0] == queue.number]
        inserts = {each.facts[2]: each for each in mine if each.kind == "insert"}
        takes = [each for each in mine if each.kind == "take"]
        found += _takes(takes, inserts, is_calm)
        if is_calm:
            found += _bounds(queue, book)
        # An item that comes back stands before later ones.
        if is_calm and not any(map(_gives_back, takes)):
            found += _in_order(queue, book, takes)
        else:
            found += _in_order(queue, book, [take for take in takes if take.facts[5]])
        if not node_died and not queue.is_discarded:
            got = {item[2] for take in takes if isinstance(take.value, list) for item in take.value}
            got |= {each.facts[1] for each in book if each.kind == "begun" and each.facts[0] == queue.number}
            late = set() if queue.maxsize or queue.max_bytes else _after_close(queue, book)
            missing = sorted(
                number
                for number, each in inserts.items()
                if each.value == "in" and number not in got and number not in late
            )
            # A take of a killed rank may have been answered.
            swallowed = sum(1 for take in takes if not take.ended and take.who in killed)
            if missing and not swallowed:
                found.append(Violation("lost", f"queue {queue.number}: {missing} were put and cannot be taken"))
    return found


def _after_close(queue: Queue, book: Sequence[Operation]) -> set[int]:
    """Items whose puts were done when they were sent, after somebody had begun to close the channel."""
    mine = [each for each in book if each.facts[:1] == [queue.number]]
    closed = next((place for place, each in enumerate(mine) if each.kind == "q_close"), len(mine))
    return {each.facts[2] for each in mine[closed:] if each.kind == "inserted"}


def judge_wavering(book: Sequence[Operation]) -> Iterator[Violation]:
    """An item that a get had, and that was given up, comes back to its own place: one consumer finds all in order."""
    got: defaultdict[int, list[int]] = defaultdict(list)
    for each in book:
        if each.kind == "w_got":
            line, (source, number) = each.facts
            got[line].append(number if source == line else -1)
    for each in book:
        if each.kind == "w_begun":
            numbers = got[each.facts[0]]
            if numbers != [*range(len(numbers))] or (
                each.ended and each.error is None and len(numbers) < each.facts[1]
            ):
                yield Violation("order", f"gets that were given up left {numbers} to the others: {each}")


def _items(take: Operation) -> list[Any]:
    return take.value if isinstance(take.value, list) else []


def _takes(takes: Sequence[Operation], inserts: dict[int, Operation], is_calm: bool) -> Iterator[Violation]:
    got: Counter[int] = Counter()
    for take in takes:
        line, key, how, amount, *_ = take.facts
        items = _items(take)
        for source, of_key, number, weight, _ in items:
            put = inserts.get(number)
            if source != line or of_key != key or put is None or put.facts[3] != weight:
                yield Violation("foreign", f"item {number} of queue {source}, key {of_key!r}, came to {take}")
            # Without a network in the way: a put that was accepted while its answer is late cannot be withdrawn.
            elif put.value == "QueueFull" or (is_calm and put.value == "DeadlineExceeded"):
                yield Violation("foreign", f"item {number} was refused ({put.value}), and came to {take}")
            got[number] += 1
        if isinstance(take.value, list):
            if how in ("get", "nowait", "soon", "batch") and not items:
                yield Violation("bound", f"nothing came to {take}")
            if how in ("many", "some", "lease", "loop") and len(items) > amount:
                yield Violation("bound", f"{len(items)} items came to {take}")
            if how == "batch" and sum(item[3] for item in items) > amount:
                yield Violation("bound", f"items too heavy came to {take}")
    for number, times in got.items():
        if times > 1:
            yield Violation("twice", f"item {number} of queue {takes[0].facts[0]} was taken {times} times")


def _in_order(queue: Queue, book: Sequence[Operation], among: Sequence[Operation]) -> Iterator[Violation]:
    """Of one key: whoever was put before another one is not taken behind it, by takes one behind the other.

    The last takes find the items that others gave back in their own places, too.
    """
    begun: dict[int, int] = {}
    accepted: dict[int, int] = {}
    started: dict[int, int] = {}
    spans: dict[int, tuple[Any, int, int]] = {}
    takes = {take.facts[4]: take for take in among}
    for place, each in enumerate(book):
        if each.facts[:1] != [queue.number]:
            continue
        if each.kind == "insert":
            begun[each.facts[2]] = place
        elif each.kind == "inserted":
            accepted[each.facts[2]] = place
        elif each.kind == "take":
            started[each.facts[4]] = place
        elif each.kind == "taken" and (take := takes.get(each.facts[1])) is not None:
            spans |= {item[2]: (take.facts[1], started[take.facts[4]], place) for item in _items(take)}

    def was_put_before(one: int, other: int) -> bool:
        return accepted.get(one, len(book)) < begun[other]

    for take in takes.values():
        numbers = [item[2] for item in _items(take)]
        for one, other in itertools.pairwise(numbers):
            if was_put_before(other, one):
                yield Violation("order", f"{take}: {one} was put behind {other}")
    for one, (key, _, end) in spans.items():
        for other, (of_key, start, _) in spans.items():
            if key == of_key and end < start and was_put_before(other, one):
                yield Violation("order", f"queue {queue.number}: {one} was taken before {other}, and put behind it")


def _bounds(queue: Queue, book: Sequence[Operation]) -> Iterator[Violation]:
    """No more has been accepted, beyond what was taken or may be on its way, than there is room for."""
    present: Counter[Any] = Counter()
    asked: Counter[Any] = Counter()
    sizes: dict[int, int] = {}
    size = 0
    takes = {each.facts[4]: each for each in book if each.kind == "take" and each.facts[0] == queue.number}
    for each in book:
        if each.facts[:1] != [queue.number]:
            continue
        if each.kind == "q_close":
            return
        if each.kind == "insert":
            sizes[each.facts[2]] = PADDING if each.facts[4] else 0
        elif each.kind == "inserted":
            present[each.facts[1]] += 1
            size += sizes[each.facts[2]]
        elif each.kind == "take":
            asked[each.facts[1]] += _most(each)
        elif each.kind == "taken":
            take = takes[each.facts[1]]
            present[take.facts[1]] -= len(_items(take))
            size -= sum(sizes[item[2]] for item in _items(take))
            if not _gives_back(take):  # otherwise as many may be beyond the bound from now on
                asked[take.facts[1]] -= _most(take)
        over = [key for key in present if queue.maxsize and present[key] > queue.maxsize + asked[key]]
        if over:
            yield Violation("bound", f"queue {queue.number}: {present} items of {over}, of which {asked} may be gone")
            return
        if queue.max_bytes and not sum(asked.values()) and size > queue.max_bytes:
            yield Violation("bound", f"queue {queue.number}: {size} bytes in {queue.max_bytes}")
            return


def _gives_back(take: Operation) -> bool:
    """Whether it may have had items, all of it or some, that have come back."""
    if take.error is not None and take.error[0] in GIVEN_UP:
        return True
    return take.facts[2] in ("soon", "hasty", "loop") or take.value in ("ValueError", "LookupError", "LeaseLost")


def _most(take: Operation) -> int:
    """The most items that a take can have."""
    _, _, how, amount, *_ = take.facts
    return 10_000 if how == "drain" else amount + 3 if how in ("many", "some", "batch", "hasty", "lease", "loop") else 1
