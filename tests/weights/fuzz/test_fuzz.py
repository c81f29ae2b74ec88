"""Differential fuzz of fitting and writing: random pairs of a source and a destination over every way."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests._support.weight_parts import Fit, Places, fit
from tests.weights.fuzz.examples import Pair, features, pairs
from tests.weights.fuzz.far_ways import FAR
from tests.weights.fuzz.oracle import Written
from tests.weights.fuzz.runners import NEAR, Way, difference, expected, run

SHARES = dict.fromkeys(("lazy", "tied", "strided", "partial", "None", "values", "mixed dtypes"), 10)
SHARES |= {"overlapping": 5, "aliased": 2, "twice": 5, "written": 30}
"""The least percentage of pairs with each feature."""

EXAMPLES = int(os.environ.get("RLINF_FUZZ_EXAMPLES", 200_000))

PARTS = 10
"""Of those within a process, for several processes."""

ROUND = 2000
"""Examples of one seed: hypothesis remembers all of a run."""


def search(
    ways: Mapping[str, Way],
    examples: int,
    counts: Counter[str],
    runner: asyncio.Runner,
    phases: tuple[Phase, ...] = (*Phase,),
    first: int = 0,
) -> None:
    """Compares what becomes of pairs with what the rules say.

    Args:
        first: the seed of the first round; each next one has the next.

    Raises:
        AssertionError: with the smallest pair of which a way makes something else.
    """

    # Not by runner.run(): to set its handler of SIGINT, Python formats the tasks before it with all that they returned.
    loop = runner.get_loop()

    def judge(pair: Pair) -> None:
        rules = {maps: expected(pair, maps) for maps in {way.maps_in(pair) for way in ways.values()}}
        counts.update(["pairs", *features(pair)])
        counts["written"] += all(isinstance(outcome, Written) for outcome in rules.values())
        for name, way in ways.items():
            found = difference(rules[way.maps_in(pair)], loop.run_until_complete(run(way, pair)))
            assert not found, f"{name}: {found}\n{pair}"

    for number in range(-(-examples // ROUND)):
        options = settings(
            max_examples=min(ROUND, examples - number * ROUND),
            database=None,
            phases=phases,
            suppress_health_check=[*HealthCheck],
        )
        seed(first + number)(options(given(pairs())(judge)))()


def check(counts: Counter[str]) -> None:
    """Prints the shares, and compares them with those that are wanted."""
    shares = {name: 100 * count / counts["pairs"] for name, count in counts.most_common()}
    told = f"{counts['pairs']} pairs: {', '.join(f'{name} {share:.1f} %' for name, share in shares.items())}"
    print(told)
    is_enough = counts["pairs"] >= ROUND  # of fewer, shares say little
    assert not is_enough or all(shares.get(name, 0) >= least for name, least in SHARES.items()), told


def test_every_way_within_a_process_does_what_the_rules_say() -> None:
    counts: Counter[str] = Counter()
    with asyncio.Runner() as runner:
        search(NEAR, ROUND, counts, runner)
    check(counts)


@pytest.mark.fuzz
@pytest.mark.parametrize("part", range(PARTS))
def test_every_way_within_a_process_does_what_the_rules_say_many_times(part: int) -> None:
    counts: Counter[str] = Counter()
    with asyncio.Runner() as runner:
        search(NEAR, EXAMPLES // PARTS, counts, runner, first=1000 * part)
    check(counts)


@pytest.mark.fuzz
@pytest.mark.parametrize("link", FAR)
def test_every_link_between_processes_does_what_the_rules_say(link: str) -> None:
    counts: Counter[str] = Counter()
    with asyncio.Runner() as runner:
        ends = contextlib.AsyncExitStack()
        try:
            way = runner.run(ends.enter_async_context(FAR[link]()))
            search({link: way}, EXAMPLES // 100, counts, runner)
        finally:
            runner.run(ends.aclose())
    check(counts)


# -- defects that it has to find --------------------------------------------------------------------------------------


def stacks_as_mappings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of lazy stacks are written as ``items()`` gives them: copies that nobody sees."""
    walk = Places._walk

    def walk_items(self: Places, holder: Any, above: tuple[str, ...], parts: Any) -> None:
        if not hasattr(holder, "tensordicts"):
            walk(self, holder, above, parts)
            return
        found = dict(holder.items(True, True))
        walk(self, {key: value.clone() for key, value in found.items()}, above, parts)

    monkeypatch.setattr(Places, "_walk", walk_items)


def values_for_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """A string or None for a tensor is not refused."""
    check = Fit.check
    monkeypatch.setattr(Fit, "check", lambda self, leaves, *_: check(self, leaves, {}))


def dtypes_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is cast."""
    problem = fit._problem
    monkeypatch.setattr(fit, "_problem", lambda *pair, **how: problem(*pair, **how | {"strict": True}))


@pytest.mark.fuzz
@pytest.mark.parametrize("defect", [stacks_as_mappings, values_for_tensors, dtypes_as_they_are])
def test_a_defect_is_found_within_200_examples(defect: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    defect(monkeypatch)
    with pytest.raises(AssertionError, match=r"strategy|link"), asyncio.Runner() as runner:
        search(NEAR, 200, Counter(), runner, (Phase.generate,))
