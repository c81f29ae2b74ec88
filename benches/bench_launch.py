"""Launch times of workers: the first cluster, a further group, hundreds; and their memory.

    python -m benches.bench_launch [--peer ray] [--peer xoscar] [--quick]

Every round starts each contestant afresh, in its own process, and stops it before the next one starts.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from . import contestant, measure, session
from .contestant import Contestant, ContestantError
from .measure import BEST, LIMIT, OURS, VERSIONS, Case, Round, Target
from .options import Options, parse
from .session import Standing

BENCH: Final = "launch"
RANKS: Final = 4
MANY: Final = 64
MEMORY: Final = "memory_per_worker"
MODULE: Final = "transformers.models.llama.modeling_llama"
"""A module of the kind that users' own modules import; ``transformers`` alone loads little."""
SETTLE: Final = 3.0
"""Seconds between the start of a cluster and the launch of more workers; some frameworks start idle ones ahead."""

COLD: Final = {
    "cold_start": ((), "the driver does not import torch, the workers' method does"),
    "cold_start_torch_driver": (("--import-torch",), "the driver's script imports torch first"),
}


def cold_case(name: str, note: str) -> Case:
    return Case(
        BENCH, name, "s", limit="one `import torch` in a bare interpreter", targets=[Target(0.5, BEST)],
        note=f"from the first line of the script to {RANKS} replies; {note}; the aim is 1.5 x the limit",
    )  # fmt: skip


def more_cases() -> dict[str, Case]:
    """Return the cases of a running cluster, by name."""
    forks = f"{RANKS} forks of a process that has imported torch"
    target = [Target(0.3, "ray")]
    cases = [
        Case(
            BENCH, MEMORY, "MiB",
            note=f"proportional set size of {RANKS} workers that have used torch",
        ),
        Case(BENCH, f"launch_{RANKS}", "s", limit=forks, targets=target, note="to the first replies"),
        Case(
            BENCH, f"launch_{RANKS}_torch", "s", limit=forks, targets=target,
            note="to the first replies of a method that uses torch",
        ),
        Case(
            BENCH, f"launch_{MANY}", "s", limit=f"{MANY} forks of a process that has imported torch",
            targets=[Target(2, "ray")], note=f"ours launches {MANY} workers, the peers {RANKS}",
        ),
    ]  # fmt: skip
    return {case.name: case for case in cases}


def preload_cases() -> dict[str, Case]:
    """Return the cases of workers that use transformers, by quantity."""
    beside = {"without": "the same with preload=[]: each worker imports it"}
    target = [Target(0.4, "without")]
    return {
        what: Case(BENCH, f"{name}_{RANKS}_transformers", unit, beside=beside, targets=targets, note=note)
        for what, name, unit, targets, note in (
            ("first", "launch", "s", target, f"preload=[{MODULE!r}], to the first replies; the import happens once"),
            ("again", "relaunch", "s", target, "a later launch; a restart takes the same template"),
            ("private", "private_memory", "MiB", [], "memory that a worker shares with no other process"),
        )
    }


def run_preloads(options: Options) -> None:
    """Measure our framework alone: workers that use transformers, with and without preloading in their template."""
    cases = {what: case for what, case in preload_cases().items() if options.wants(case.name)}
    if not cases:
        return
    opening = ("cold", {"workers": 1, "method": "use_torch"})
    rounds: list[dict[str, dict[str, list[float]]]] = []
    for index in range(options.rounds):
        ways: list[tuple[str, list[str]]] = [(OURS, [MODULE]), ("without", [])]
        with Standing(functools.partial(_fresh, OURS, (), options), opening) as standing:
            rounds.append({
                who: standing.ask("importing", workers=RANKS, modules=modules)
                for who, modules in (ways if index % 2 == 0 else ways[::-1])
            })  # fmt: skip
    for what, case in cases.items():
        _print(case.row([{who: found[what] for who, found in measured.items()} for measured in rounds]), options)


def run_cold(options: Options) -> None:
    for name, (flags, note) in COLD.items():
        if not options.wants(name):
            continue
        measures: dict[str, Callable[[], Sequence[float]]] = {
            who: functools.partial(_cold, who, flags, options) for who in (OURS, *options.peers)
        }
        with contestant.limits() as limits:
            measures[LIMIT] = functools.partial(limits.ask, "import_torch")
            rounds = measure.alternate(options.rounds, measures, warm_up=not options.quick)
        _print(cold_case(name, note).row(rounds), options)


def _cold(who: str, flags: Sequence[str], options: Options) -> Sequence[float]:
    try:
        with _fresh(who, flags, options) as started:
            samples: list[float] = started.ask("cold", workers=RANKS, method="use_torch")
            return samples
    except ContestantError as error:
        return _left_out(who, error)


def run_more(options: Options) -> None:
    """Measure every case once per round; each round starts each contestant once."""
    cases = {name: case for name, case in more_cases().items() if options.wants(name)}
    if not cases:
        return
    rounds: dict[str, list[Round]] = {name: [] for name in cases}
    for index in range(options.rounds):
        measured: dict[str, dict[str, Sequence[float]]] = {name: {} for name in cases}
        names = [OURS, *options.peers]
        for who in names if index % 2 == 0 else reversed(names):
            for name, samples in _more(who, cases, options).items():
                measured[name][who] = samples
        with contestant.limits() as limits:
            for name in cases:
                if name.startswith("launch"):
                    measured[name][LIMIT] = limits.ask("forks", count=MANY if name == f"launch_{MANY}" else RANKS)
        for name in cases:
            rounds[name].append(measured[name])
    for name, case in cases.items():
        _print(case.row(rounds[name]), options)


def _more(who: str, cases: Iterable[str], options: Options) -> dict[str, Sequence[float]]:
    """Run one contestant's part of a round, and restart it after a case that failed."""
    flags = ["--ready-workers"] if who in ("ray", "rlinf") else []
    settle = 0.5 if options.quick else SETTLE
    found: dict[str, Sequence[float]] = {}
    opening = ("cold", {"workers": RANKS, "method": "use_torch"})
    with Standing(functools.partial(_fresh, who, flags, options), opening) as standing:
        for name in cases:
            if name == f"launch_{MANY}" and who not in VERSIONS and f"launch_{RANKS}" in found:
                found[name] = found[f"launch_{RANKS}"]
            elif name == MEMORY:
                found[name] = session.samples(who, standing, "memory", {})
            else:
                workers = MANY if name == f"launch_{MANY}" and who in VERSIONS else RANKS
                method = "use_torch" if name.endswith("torch") else "ping_def"
                arguments = {"workers": workers, "method": method, "settle": settle}
                found[name] = session.samples(who, standing, "more", arguments)
    return found


def growth_cases(sizes: Sequence[int]) -> dict[tuple[int, str], Case]:
    """Return cases by number of workers and quantity, bounded by the cost among the fewest."""
    units = {"launch": ("ms per worker", 1e3), "call": ("us per rank", 1e6), "memory": ("MiB per worker", 1.0)}
    found = {}
    for size in sizes:
        for what, (unit, scale) in units.items():
            limit, targets = (f"with {sizes[0]} workers", [Target(1, LIMIT)]) if size != sizes[0] else (None, [])
            found[size, what] = Case(BENCH, f"growth_{what}_{size}", unit, scale, limit=limit, targets=targets)
    return found


def run_growth(options: Options) -> None:
    """Measure what a worker costs in our framework among 4 and among 256; the bound is the cost among 4."""
    sizes, calls = ((4, 8), 20) if options.quick else ((4, 16, 64, 256), 200)
    cases = {key: case for key, case in growth_cases(sizes).items() if options.wants(case.name)}
    if not cases:
        return
    wanted = [size for size in sizes if size == sizes[0] or any(size == key[0] for key in cases)]
    opening = ("cold", {"workers": 1, "method": "use_torch"})
    rounds: list[dict[int, dict[str, list[float]]]] = []
    for index in range(options.rounds):
        with Standing(functools.partial(_fresh, OURS, (), options), opening) as standing:
            order = wanted if index % 2 == 0 else wanted[::-1]
            rounds.append(
                {size: _per_worker(standing.ask("growth", workers=size, calls=calls), size) for size in order}
            )
    for (size, what), case in cases.items():
        beside = [{OURS: measured[size][what], LIMIT: measured[sizes[0]][what]} for measured in rounds]
        _print(case.row(beside), options)


def _per_worker(samples: dict[str, list[float]], workers: int) -> dict[str, list[float]]:
    shared = {name: [sample / workers for sample in samples[name]] for name in ("launch", "call")}
    return {**shared, "memory": samples["memory"]}


def _left_out(who: str, error: ContestantError) -> list[float]:
    """Return the samples; a peer that fails has none, ours must not fail."""
    if who == OURS:
        raise error
    print(error, file=sys.stderr)
    return []


def _fresh(who: str, flags: Sequence[str], options: Options) -> Contestant:
    if who in VERSIONS:
        return contestant.ours("--loop", options.loop, *flags, checkout=options.checkout(who))
    return contestant.peer(who, options.peers_dir, *flags)


def _print(row: dict[str, Any], options: Options) -> None:
    measure.print_row({**row, "loop": options.loop})


def main(arguments: list[str] | None = None) -> None:
    options = parse("What it costs to get workers.", rounds=5, arguments=arguments)
    try:
        run_cold(options)
        run_more(options)
        run_preloads(options)
        run_growth(options)
    except ContestantError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
