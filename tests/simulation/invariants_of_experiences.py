"""Broken promises of experiences: samples that are lost, taken twice, too stale, or not with their groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.simulation.acts_of_experiences import Store
from tests.simulation.judgement import Violation
from tests.simulation.operations import Operation


def judge_experiences(book: Sequence[Operation], stores: Sequence[Store], node_died: bool) -> list[Violation]:
    """Each sample once, in its whole group, fresh; nothing accepted is lost, and the counts say so."""
    found = []
    for store in stores:
        mine = [each for each in book if each.kind.startswith("e_") and each.facts[0] == store.number]
        found += [*_batches(store, mine), *_once(mine)]
        if not node_died and store.content is not None:
            found += _whole(store, mine)
    return found


def _batches(store: Store, book: Sequence[Operation]) -> Iterator[Violation]:
    for had in (each for each in book if each.kind == "e_had"):
        _, _, groups, how, version = had.facts
        oldest = []
        for group in groups:
            names, versions = {sample[2] for sample in group}, [sample[3] for sample in group]
            oldest.append(min(versions))
            if len(names) != 1 or any(sample[0] != store.number for sample in group):
                yield Violation("foreign", f"one group has samples of several: {had}")
            if len(group) > store.group or (len(group) < store.group and not store.keeps_short):
                yield Violation("bound", f"a group of {len(group)}: {had}")
            if version is not None and how != "stale" and version - min(versions) > store.max_staleness:
                yield Violation("stale", f"{version - min(versions)} versions behind: {had}")
        if oldest != sorted(oldest):
            yield Violation("order", f"newer groups came first: {had}")


def _once(book: Sequence[Operation]) -> Iterator[Violation]:
    """Whoever has taken a sample was the last who had it."""
    latest: dict[int, int] = {}
    taken: set[int] = set()
    for each in book:
        if each.kind == "e_had":
            for number in (sample[1] for group in each.facts[2] for sample in group):
                if number in taken:
                    yield Violation("twice", f"sample {number} had been taken, and came to {each}")
                latest[number] = each.facts[1]
        elif each.kind == "e_took":
            _, nonce, numbers = each.facts
            for number in numbers:
                if latest[number] != nonce:
                    yield Violation("twice", f"another one had sample {number} when {each}")
                taken.add(number)


def _whole(store: Store, book: Sequence[Operation]) -> Iterator[Violation]:
    assert store.content is not None
    present, dropped, counted = store.content
    put = {each.facts[1] for each in book if each.kind == "e_put" and each.value == "in"}
    taken = {number for each in book if each.kind == "e_took" for number in each.facts[2]}
    told = {each.facts[1] for each in book if each.kind == "e_take" and each.ended and each.error is None}
    # The end of a take whose holder was killed or cancelled may have come through.
    perhaps = {
        sample[1]
        for each in book
        if each.kind == "e_had" and each.facts[1] not in told
        for group in each.facts[2]
        for sample in group
    }
    if again := set(present) & taken or {number for number in present if present.count(number) > 1}:
        yield Violation("twice", f"experience {store.number}: {sorted(again)} were taken, or are there twice")
    missing = put - set(present) - taken - perhaps
    if len(missing) > dropped:
        yield Violation("lost", f"experience {store.number}: {sorted(missing)} were put, and {dropped} dropped")
    if not len(taken) <= counted <= len(taken | perhaps):
        yield Violation("counts", f"experience {store.number}: {counted} counted as taken, {sorted(taken)} were")
