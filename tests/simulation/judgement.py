"""Broken promises of a program's operations, found in its journals."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from tests.simulation.operations import Operation


@dataclass(frozen=True)
class Violation:
    """One broken promise; ``kind`` is one word of ``KINDS``."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"[{self.kind}] {self.text}"


KINDS = ("hang", "lost", "twice", "order", "foreign", "death", "error", "left", "logged")

GIVEN_UP = frozenset({"CancelledError", "TimeoutError", "DeadlineExceeded"})
"""Of the one who waited."""

CLOSED = frozenset({"ClosedError", "EndOfChannel"})
GONE = frozenset({"WorkerDied", "ClosedError"})


@dataclass(frozen=True)
class Facts:
    """What a program has done to its processes.

    Attributes:
        killed: the workers that were killed or became something else.
        starved: whether any ran out of descriptors.
        daemon_died: the daemon was killed.
        discarded: the channels that were closed with what was in them.
    """

    killed: frozenset[str] = frozenset()
    starved: bool = False
    daemon_died: bool = False
    discarded: frozenset[int] = frozenset()


def judge(operations: Sequence[Operation], facts: Facts) -> list[Violation]:
    """All that is wrong."""
    found = [*_errors(operations, facts), *_calls(operations, facts)]
    if not facts.daemon_died:  # with it go its channels, and the workers
        found += _messages(operations)
        found += _channels(operations, facts)
    return found


def _errors(operations: Sequence[Operation], facts: Facts) -> list[Violation]:
    """Errors that the program has given no cause for."""
    found = []
    for operation in operations:
        if operation.error is None:
            continue
        name = operation.error[0]
        if name in GIVEN_UP or (name in CLOSED and operation.kind in ("put", "get", "close")):
            continue
        if (name in GONE and (facts.killed or facts.daemon_died)) or (name == "NodeLost" and facts.daemon_died):
            continue
        if name == "OSError" and facts.starved:
            continue
        found.append(Violation("death" if name in ("WorkerDied", "NodeLost") else "error", str(operation)))
    return found


def _calls(operations: Sequence[Operation], facts: Facts) -> list[Violation]:
    """A call runs once; one that failed, once at most."""
    runs = Counter(operation.facts[0] for operation in operations if operation.kind == "run")
    found = []
    for call in (operation for operation in operations if operation.kind == "call"):
        times = runs[call.facts[0]]
        if times > 1:
            found.append(Violation("twice", f"{call} has run {times} times"))
        elif not times and call.ended and call.error is None:
            found.append(Violation("lost", f"{call} has not run"))
    return found


def _messages(operations: Sequence[Operation]) -> list[Violation]:
    """Per pair: in order, and once; ``invariants_of_crews`` and promises look for those that are lost."""
    sent: dict[tuple[str, str], set[int]] = defaultdict(set)
    received: dict[tuple[str, str], list[Operation]] = defaultdict(list)
    for operation in operations:
        if operation.kind == "send":
            sent[operation.who, operation.facts[0]].add(operation.facts[1])
        elif operation.kind == "recv" and operation.value is not None:
            received[operation.facts[0], operation.who].append(operation)
    found = []
    for pair, receives in received.items():
        way = " -> ".join(pair)
        numbers = [each.value for each in sorted(receives, key=lambda operation: operation.facts[1])]
        for number, times in Counter(numbers).items():
            if times > 1:
                found.append(Violation("twice", f"{way}: message {number} came {times} times"))
            if number not in sent[pair]:
                found.append(Violation("foreign", f"{way}: message {number} was never sent"))
        if numbers != sorted(numbers):
            found.append(Violation("order", f"{way}: received {numbers}"))
    return found


def _channels(operations: Sequence[Operation], facts: Facts) -> list[Violation]:
    """Per channel: what was put is got once, and in no other one."""
    puts: dict[int, dict[int, Operation]] = defaultdict(dict)
    gets: dict[int, list[Operation]] = defaultdict(list)
    for operation in operations:
        if operation.kind == "put":
            puts[operation.facts[0]][operation.facts[1]] = operation
        elif operation.kind == "get":
            gets[operation.facts[0]].append(operation)
    found = []
    for channel in puts.keys() | gets.keys():
        found += _channel(channel, puts[channel], gets[channel], facts)
    return found


def _channel(channel: int, puts: dict[int, Operation], gets: list[Operation], facts: Facts) -> list[Violation]:
    found = []
    got: Counter[int] = Counter()
    for operation in gets:
        if operation.value is None:
            continue
        source, number, redelivered = operation.value
        if source != channel:
            found.append(Violation("foreign", f"an item of channel {source} in channel {channel}: {operation}"))
        elif number not in puts:
            found.append(Violation("foreign", f"channel {channel}: item {number} was never put"))
        elif not redelivered:
            got[number] += 1
    found += [
        Violation("twice", f"channel {channel}: item {number} was got {times} times")
        for number, times in got.items()
        if times > 1
    ]
    accepted = {number for number, put in puts.items() if put.ended and put.error is None}
    missing = accepted - {operation.value[1] for operation in gets if operation.value is not None}
    # A get of a worker that was killed may have been answered, and nobody can say so any more.
    swallowed = sum(1 for operation in gets if not operation.ended and operation.who in facts.killed)
    drained = any(operation.error and operation.error[0] == "EndOfChannel" for operation in gets)
    if drained and len(missing) > swallowed and channel not in facts.discarded:
        found.append(Violation("lost", f"channel {channel}: {sorted(missing)} were put and cannot be got"))
    return found
