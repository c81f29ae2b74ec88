"""Broken promises of conversations, broadcasts and hooks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from tests.faults.journal import Operation
from tests.faults.judgement import Violation
from tests.simulation.program import Program


def judge_talks(book: Sequence[Operation], program: Program, killed: set[str], node_died: bool) -> Iterator[Violation]:
    """Messages of a pair come in order and once; none is lost, though others are withdrawn and receives given up."""
    posts = {each.facts[1]: each for each in book if each.kind == "t_post"}
    fetches: dict[tuple[str, str], list[Operation]] = defaultdict(list)
    for each in book:
        if each.kind == "t_fetch" and each.value is not None:
            fetches[each.facts[0], each.who].append(each)
        is_cast = each.kind == "t_cast" and program.is_calm and each.ended and each.error is None
        if is_cast and each.value != [each.facts[0], 0]:
            yield Violation("foreign", f"{each} brought another value")
    for pair, found in fetches.items():
        numbers = [each.value[0] for each in found if each.value[0] != "end"]
        if numbers != sorted(set(numbers)):
            yield Violation("order", f"{pair[0]} -> {pair[1]}: received {numbers}")
        for number in numbers:
            if number not in posts or (posts[number].who, posts[number].facts[0]) != pair:
                yield Violation("foreign", f"{pair[0]} -> {pair[1]}: message {number} was not sent there")
        if node_died or killed & set(pair):
            continue
        for nonce in [each.value[1] for each in found if each.value[0] == "end"]:
            sent = [each for each in posts.values() if each.facts[2] == nonce and each.ended and each.error is None]
            missing = [each.facts[1] for each in sent if each.facts[1] not in numbers]
            if missing:
                yield Violation("lost", f"{pair[0]} -> {pair[1]}: {missing} were sent, received {numbers}")


def judge_hooks(book: Sequence[Operation], program: Program, node_died: bool) -> Iterator[Violation]:
    """Attempts of hooks go up, and no rank begins one twice; the last one has ended wherever it was begun."""
    latest: dict[tuple[str, int], int] = defaultdict(int)
    ends: dict[int, set[str]] = defaultdict(set)
    for each in book:
        if each.kind == "h_begun":
            attempt, token = each.facts
            if attempt <= latest[each.who, token]:
                yield Violation("twice", f"{each.who} began attempt {attempt} behind {latest[each.who, token]}")
            latest[each.who, token] = attempt
        elif each.kind == "h_ended":
            ends[each.facts[0]].add(each.who)
    closes = any(each.kind == "h_close" for each in book)
    if latest and not node_died and not closes and program.hook != "raise" and program.order == "group":
        last = max(latest.values())
        begun = {who for (who, _), attempt in latest.items() if attempt == last}
        if begun != ends[last]:
            yield Violation("lost", f"attempt {last} was begun by {sorted(begun)}, and ended by {sorted(ends[last])}")
