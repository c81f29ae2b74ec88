"""Settings of a simulated cluster, and the small limits of its random programs."""

from __future__ import annotations

import ast
import asyncio
import importlib
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rlinf_async import Cluster, ConfigError, NodeLost, NodePlacementStrategy, Worker, concurrent, settings
from rlinf_async._simulation.small_limits import LIMITS, SETTINGS, small_limits
from rlinf_async.testing import SimCluster
from tests.simulation.program import write

CHECKOUT = Path(__file__).resolve().parents[2]


class Producer(Worker):
    made = 0

    async def count(self, most: int) -> AsyncIterator[int]:
        for number in range(most):
            self.made = number + 1
            yield number

    @concurrent
    async def how_many(self) -> int:
        return self.made

    def lease_s(self) -> float:
        return settings.LEASE_S()


def launch(cluster: Cluster, node: int) -> Producer:
    return Producer.create_group().launch(cluster, NodePlacementStrategy([node]), name="producer")  # type: ignore[return-value]


@pytest.mark.parametrize("name", ["RLINF_STREAM_ITEMS", "STREAM_ITEMS", "stream_items"])
def test_a_setting_holds_for_the_simulated_run_only(name: str) -> None:
    async def main() -> int:
        async with Cluster(log_to_driver=False) as cluster:
            producer = launch(cluster, 0)
            await anext(aiter(producer.count(50)))
            await asyncio.sleep(1)
            return (await producer.how_many())[0]

    default = SimCluster().run(main)
    assert SimCluster(settings={name: 2}).run(main) < 6 < default
    assert SimCluster().run(main) == default
    assert settings.STREAM_ITEMS() == settings.STREAM_ITEMS.default


def test_daemons_and_workers_have_the_settings_too() -> None:
    sim = SimCluster(nodes=2, settings={"LEASE_S": 3})

    async def main() -> float:
        async with Cluster(log_to_driver=False) as cluster:
            producer = launch(cluster, 1)
            (lease_s,) = await producer.lease_s()
            sim.cut(1, 8)
            with pytest.raises(NodeLost):
                await producer.lease_s()
            return lease_s

    assert sim.run(main) == 3


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("RLINF_STREAM_ITEM", 2, "did you mean RLINF_STREAM_ITEMS?"),
        ("LEASE", 5, "did you mean RLINF_LEASE_S?"),
        ("colour", 5, "docs/settings.md lists all"),
        ("STREAM_ITEMS", 0, "RLINF_STREAM_ITEMS='0' in SimCluster(settings=): a number of items from 1 to 1000000"),
        ("LEASE_S", "soon", "RLINF_LEASE_S='soon' in SimCluster(settings=): a number of seconds"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_with_the_name_that_was_meant(name: str, value: object, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SimCluster(settings={name: value})  # type: ignore[dict-item]
    assert told in str(caught.value)


def importers() -> dict[tuple[str, str], set[str]]:
    """Return, by module and name, the modules of both packages that import that name from there."""
    found = defaultdict(set)
    for package, folder in (("rlinf_async", "rlinf_async"), ("rlinf_launcher", "launcher")):
        for path in (CHECKOUT / folder).rglob("*.py"):
            name = ".".join((package, *path.relative_to(CHECKOUT / folder).with_suffix("").parts))
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom) and node.module:
                    for alias in node.names:
                        found[node.module, alias.name].add(name)
    return found


def test_small_limits_hold_in_every_module_that_has_a_copy_and_only_while_they_run() -> None:
    copies = importers()
    public = [(module, name) for module, name, _ in LIMITS if not name.startswith("_")]
    places = {(module, name): {module.__name__} | copies[module.__name__, name] for module, name in public}
    modules = {place: importlib.import_module(place) for each in places.values() for place in each}
    before = {(place, name): vars(modules[place])[name] for (_, name), each in places.items() for place in each}
    with small_limits():
        for module, name, value in LIMITS:
            held = {place: vars(modules[place])[name] for place in places.get((module, name), ())}
            assert held == dict.fromkeys(held, value), name
            assert vars(module)[name] is value
    assert {(place, name): vars(modules[place])[name] for place, name in before} == before


def test_no_default_of_a_parameter_keeps_a_limit_as_it_was_when_its_module_was_imported() -> None:
    names, found = {name for _, name, _ in LIMITS}, []
    for folder in ("rlinf_async", "launcher"):
        for path in (CHECKOUT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.arguments):
                    defaults = [each.id for each in (*node.defaults, *node.kw_defaults) if isinstance(each, ast.Name)]
                    found += [f"{path.relative_to(CHECKOUT)}: {name}" for name in names & {*defaults}]
    assert found == []


def test_a_small_limit_is_another_number_and_within_the_bounds_of_its_setting() -> None:
    assert [name for module, name, value in LIMITS if vars(module)[name] == value] == []
    assert settings.variables_of(SETTINGS, "here") == {name: str(value) for name, value in SETTINGS.items()}


def test_random_programs_have_either_limits() -> None:
    assert {write(seed).is_small for seed in range(20)} == {True, False}
