"""Broken promises of conversations, broadcasts and hooks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from tests.simulation.families import CREW
from tests.simulation.fleet import GUEST
from tests.simulation.judgement import Violation
from tests.simulation.operations import Operation
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
            attempt, token, _ = each.facts
            if attempt <= latest[each.who, token]:
                yield Violation("twice", f"{each.who} began attempt {attempt} behind {latest[each.who, token]}")
            latest[each.who, token] = attempt
        elif each.kind == "h_ended":
            ends[each.facts[0]].add(each.who)
    closes = any(each.kind == "h_close" for each in book)
    if latest and not node_died and not closes and program.hook not in ("", "raise") and program.order == "group":
        last = max(latest.values())
        begun = {who for (who, _), attempt in latest.items() if attempt == last}
        if begun != ends[last]:
            yield Violation("lost", f"attempt {last} was begun by {sorted(begun)}, and ended by {sorted(ends[last])}")


def judge_returns(book: Sequence[Operation], program: Program, node_died: bool) -> Iterator[Violation]:
    """All are told the same of an attempt: ranks that run its hook, none that is lost; each return is told once."""
    hooked = {CREW} if program.hook else set()
    hooked |= {GUEST for step in program.steps if step.kind == "guest_open" and step.facts[-1] is not None}
    told: dict[tuple[str, int], list[int]] = {}
    begun: set[tuple[str, int]] = set()
    births: Counter[str] = Counter()
    dead: set[str] = set()
    lost: set[str] = set()
    untold: set[str] = set()
    for each in book:
        if each.kind == "guest_born" and each.who.startswith(f"{GUEST}:"):  # not of a nest
            births[each.who] += 1
            # A process that was killed before its constructor began has noted no birth: its death tells of it.
            untold |= {each.who} if births[each.who] > 1 or each.who in dead else set()
            lost.discard(each.who)
            dead.discard(each.who)
        elif each.kind == "guest_death":
            rank, _, returns = each.facts
            dead.add(f"{GUEST}:{rank}")
            lost |= set() if returns else {f"{GUEST}:{rank}"}
        elif each.kind in ("h_begun", "h_told"):
            is_told = each.kind == "h_told"
            group, attempt, ranks = each.facts if is_told else (each.who.split(":")[0], each.facts[0], each.facts[2])
            if told.setdefault((group, attempt), ranks) != ranks:
                yield Violation("foreign", f"{each}, and others were told of {told[group, attempt]}")
            if not is_told:
                begun.add((each.who, attempt))
                continue
            back = {f"{group}:{rank}" for rank in ranks}
            if gone := lost & back:
                yield Violation("death", f"{each}, and {sorted(gone)} had been given up")
            elif group == GUEST and not back <= untold:
                yield Violation("twice", f"{each}, and {sorted(back - untold)} have been told of, or were never away")
            elif group in hooked and (absent := [who for who in back if (who, attempt) not in begun]):
                yield Violation("lost", f"{each}, and the hook has not run on {absent}")
            untold -= back
    closes = any(step.kind == "guest_close" for step in program.steps)
    if untold - dead and not node_died and not closes:
        yield Violation("lost", f"nobody was told that {sorted(untold - dead)} are back")
