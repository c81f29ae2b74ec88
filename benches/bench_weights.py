"""Weight synchronisation times: a gigabyte in three shapes, and a small policy, to 1, 2 and 4 receivers.

    python -m benches.bench_weights [--peer torchrl] [--peer ray] [--peer rlinf] [--quick]
    python -m benches.bench_weights --only llm_1GiB_4
    python -m benches.bench_weights --only two_nodes --only two_hosts    # nodes of this machine; network namespaces
    python -m benches.bench_weights --only narrow_hosts                  # three hosts that forward weights
    python -m benches.bench_weights --only one_gpu                       # trainer, receiver or both on a GPU
    python -m benches.bench_weights --only publish --only load           # publish/follow, and a plain call
    python -m benches.bench_weights --only computing                     # beside a trainer that computes in Python
    python -m benches.bench_weights --only digest                        # the same with verify=

Every version is verified at every receiver before the next one is sent.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final

from . import contestant, measure, session
from .contestant import ContestantError
from .exchange import GIBI, KIBI, MEBI, Hosts, in_words
from .measure import BEST, ITSELF, LIMIT, OURS, VERSIONS, Case, Round, Target
from .options import Options, parse
from .session import Job, Measurement, Standing

BENCH: Final = "weights"
RECEIVERS: Final = (1, 2, 4)
APPLY: Final = ("map", "copy")
PEERS: Final = ("torchrl", "ray", "rlinf")
COPY_ONLY: Final = ("rlinf",)
"""Peers whose receivers cannot map shared memory."""

LARGE: Final = {"llm": 290, "many": 10_000, "one": 1}
"""Number of tensors, by the shape of the model."""

SMALL: Final = "mlp"
POLICY: Final = 100 * KIBI
ONE: Final = "one tensor"
CONTROL: Final = "control"
STAGED: Final = "staged"
TOTAL: Final = "total"
REST: Final = "rest"
PAUSE: Final = "pause"
ALONE: Final = "one receiver"
COPY: Final = "one copy by torch, by one thread"
STREAMED: Final = "memmove"

GLOO: Final = "a bare Gloo broadcast to one process"
TWO_NODES: Final = "two_nodes"
TWO_HOSTS: Final = "two_hosts"
FAR_RECEIVERS: Final = (1, 2)
_FAR_OPENING: Final = ("start", {"receivers": max(FAR_RECEIVERS)})

NARROW: Final = "narrow_hosts"
NARROW_RECEIVERS: Final = 3
RATE: Final = "2gbit"
"""Bandwidth of the trainer's network; so low that the network, not the CPU, is the bottleneck."""
DIRECT: Final = "the trainer sends to each of them"


@dataclasses.dataclass(frozen=True)
class Sync:
    """A measured synchronisation: the model, and its receivers.

    Args:
        size: bytes of the model.
        apply: ``"copy"`` or ``"map"``.
        where: place of the receivers: ``"two_nodes"`` for another node on this machine, ``"two_hosts"`` for a host with
            its own network, ``"narrow_hosts"`` for one such host each; empty for the trainer's node.
    """

    shape: str
    size: int
    receivers: int
    apply: str
    where: str = ""

    @property
    def name(self) -> str:
        where = f"{self.where}_" if self.where else ""
        return f"{where}{self.shape}_{in_words(self.size)}_{self.receivers}_{self.apply}"

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of the work."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "where"}

    def cases(self) -> dict[str, Case]:
        """Return the cases: time until the source may change, until all have it, between the two, and the pause."""
        if self.where:
            return self._far_cases()
        return self._small_cases() if self.shape == SMALL else self._large_cases()

    def _far_cases(self) -> dict[str, Case]:
        case = functools.partial(Case, BENCH, unit="ms", scale=1e3)
        target = Target(1 / 0.8, LIMIT)
        if self.where == NARROW:
            note = f"the trainer's network carries {RATE}"
            targets = [target, Target(0.5, DIRECT)]
            beside = {DIRECT: "the same weights, with no receiver that passes them on"}
            return {TOTAL: case(f"{self.name}_{TOTAL}", limit=GLOO, beside=beside, targets=targets, note=note)}
        return {
            STAGED: case(f"{self.name}_{STAGED}"),
            TOTAL: case(f"{self.name}_{TOTAL}", limit=GLOO, targets=[target] if self.apply == "map" else []),
        }

    def _small_cases(self) -> dict[str, Case]:
        echo = f"echo over {self.receivers} UNIX sockets"
        case = functools.partial(Case, BENCH, unit="us", scale=1e6)
        beside = {CONTROL: "a few bytes to each receiver and back, by send and recv"}
        return {
            STAGED: case(f"{self.name}_{STAGED}"),
            TOTAL: case(
                f"{self.name}_{TOTAL}", limit=echo, beside=beside, targets=[Target(3, CONTROL), Target(1, BEST)]
            ),
            PAUSE: case(f"{self.name}_{PAUSE}", targets=[Target(1e-3, ITSELF)] if self.apply == "map" else []),
        }

    def _large_cases(self) -> dict[str, Case]:
        copies = COPY
        if self.apply == "copy":
            copies += ", then one by each receiver at once"
        case = functools.partial(Case, BENCH, unit="ms", scale=1e3)
        total = [] if self.apply == "map" else [Target(1.2, LIMIT)]
        streamed = "the same by one memmove of as many bytes, which writes past the caches"
        beside = {STREAMED: streamed}
        if self.shape == "many":
            beside[ONE] = "the same bytes in one tensor"
            total.append(Target(1.5, ONE))
        found = {
            STAGED: case(
                f"{self.name}_{STAGED}", limit=COPY, beside={STREAMED: streamed}, targets=[Target(1.15, LIMIT)]
            ),
            TOTAL: case(f"{self.name}_{TOTAL}", limit=copies, beside=beside, targets=[*total, Target(1, BEST)]),
        }
        if self.apply == "map":
            bound = Target(2e-3 + 5e-6 * LARGE[self.shape], ITSELF)
            note = "from then on until the last receiver has answered; the target is in seconds"
            beside = {ALONE: "the same weights to one receiver, earlier in the session"} if self.receivers > 1 else {}
            found[REST] = case(f"{self.name}_{REST}", beside=beside, targets=[bound], note=note)
        pause = [Target(1e-3, ITSELF)] if self.apply == "map" and self.shape == "llm" else []
        note = "the longest of the receivers; the target is in seconds" if pause else "the longest of the receivers"
        found[PAUSE] = case(f"{self.name}_{PAUSE}", targets=pause, note=note)
        return found


def large(quick: bool, receivers: int, apply: str) -> list[Sync]:
    """Return the syncs that the same rounds measure."""
    return [Sync(shape, 64 * MEBI if quick else GIBI, receivers, apply) for shape in LARGE]


def small(receivers: int, apply: str) -> list[Sync]:
    return [Sync(SMALL, POLICY, receivers, apply)]


def far(quick: bool, where: str, apply: str) -> list[Sync]:
    """Return syncs from one node to another, to one receiver and to two."""
    return [Sync("llm", 64 * MEBI if quick else GIBI, receivers, apply, where) for receivers in FAR_RECEIVERS]


def narrow(quick: bool) -> list[Sync]:
    """Return syncs from one host to three others."""
    return [Sync("llm", 64 * MEBI if quick else 128 * MEBI, NARROW_RECEIVERS, "map", NARROW)]


def families(quick: bool) -> list[list[Sync]]:
    """Return all syncs; those of the same rounds are together."""
    pairs = [(receivers, apply) for receivers in RECEIVERS for apply in APPLY]
    return [*(large(quick, *pair) for pair in pairs), *(small(*pair) for pair in pairs)]


ON_GPU: Final = {
    "d2h": ("d2h", 1, "until the trainer's weights, on the GPU, may change; the receiver's are on the CPU"),
    "h2d": ("h2d", 1, "for which a receiver on the GPU could not use its own; the trainer's are on the CPU"),
    "copy": ("d2d", 2, "until the receiver, on the trainer's GPU, has answered; packed and copied there"),
    "map": ("d2d", 1, "until the receiver, on the trainer's GPU, has answered; packed there"),
}
"""By path: the CUDA copy to compare with, the number of rounds, and the quantities."""


def one_gpu(quick: bool) -> list[Measurement]:
    """Return syncs to one receiver, from or to a GPU, or both on one."""
    found = []
    size, count = (64 * MEBI, 2) if quick else (GIBI, 5)
    for way, (copy, times, note) in ON_GPU.items():
        limit = f"cudaMemcpy of as many bytes, {copy}" + (", twice" if times > 1 else "")
        case = Case(BENCH, f"one_gpu_{way}_{in_words(size)}", "ms", 1e3, limit=limit, note=note)
        job = ("gpu_copy", {"way": copy, "size": size, "times": times, "count": count})
        found.append(Measurement(case, "sync_on_gpu", {"way": way, "size": size, "count": count}, job, peers=()))
    return found


COSTS: Final = {"mlp": (96 * KIBI, 50), "llm": (64 * MEBI, 20), "many": (10_000 * 1000, 5)}
"""Bytes and versions per round, by shape: a small policy, a large one, and ten thousand tensors of a kilobyte, which
take longer to fill and verify than to send."""

WAYS: Final = ("publish_copy", "publish_map", "load")


def costs(quick: bool) -> list[Measurement]:
    """Return measurements until one worker has a version: ``publish`` and ``follow``, or a call with the state."""
    found = []
    note = "until the worker has it and the trainer has heard so"
    for shape, (size, count) in COSTS.items():
        for way in WAYS:
            case = Case(BENCH, f"{way}_{shape}_{in_words(size)}", "ms", 1e3, note=note)
            arguments = {"shape": shape, "size": size, "way": way, "count": 5 if quick else count}
            found.append(Measurement(case, "sync_by_words", arguments, peers=()))
    return found


DIGESTS: Final = {"none": "off", "sha256": "sha256"}
"""Value of ``verify=``, by name of the row."""


def while_computing(quick: bool) -> list[Measurement]:
    """Return measurements of ``publish`` and ``follow`` while a ``def`` method computes in Python after ``send()``."""
    found = []
    note = "until the worker has it; the trainer's main thread computes in Python meanwhile"
    for shape in ("mlp", "llm"):
        size, count = COSTS[shape]
        for apply in APPLY:
            case = Case(BENCH, f"computing_{apply}_{shape}_{in_words(size)}", "ms", 1e3, note=note)
            arguments = {"shape": shape, "size": size, "way": f"publish_{apply}", "count": 5 if quick else count}
            found.append(Measurement(case, "sync_by_words", {**arguments, "computes": True}, peers=()))
    return found


def digests(quick: bool) -> list[Measurement]:
    """Return measurements of ``publish`` and ``follow`` with each kind of verification, and without."""
    found = []
    for shape, (size, count) in COSTS.items():
        for apply in APPLY:
            for name, verify in DIGESTS.items():
                case = Case(BENCH, f"digest_{name}_{apply}_{shape}_{in_words(size)}", "ms", 1e3)
                arguments = {"shape": shape, "size": size, "way": f"publish_{apply}", "count": 5 if quick else count}
                found.append(Measurement(case, "sync_by_words", {**arguments, "verify": verify}, peers=()))
    return found


class Session:
    """Measurements of ours, of a peer or none, and of the limits.

    Args:
        quick: True for few versions.
    """

    def __init__(self, standing: Mapping[str, Standing], quick: bool) -> None:
        self._standing = standing
        self._quick = quick
        self._failed: set[tuple[str, Sync]] = set()
        self._rests: dict[tuple[str, str], list[float]] = {}
        """Return what one receiver has taken, by shape and ``apply``."""

    def round(self, family: Sequence[Sync], *, backwards: bool) -> dict[str, Round]:
        """Run one round of the syncs that share it; return results by case name."""
        asked = [(who, sync) for sync in family for who in self._standing if who != LIMIT]
        found = {pair: self._sync(*pair) for pair in (asked[::-1] if backwards else asked)}
        limits = self._limits(family[0])
        one = next((found[OURS, sync] for sync in family if sync.shape == "one"), {})
        for sync in family:
            if sync.receivers == 1 and not sync.where:
                self._rests.setdefault((sync.shape, sync.apply), []).extend(found[OURS, sync].get(REST, ()))
        rounds: dict[str, Round] = {}
        for sync in family:
            for what, case in sync.cases().items():
                taken = {who: found[who, sync].get(what) for who in self._standing if who != LIMIT}
                taken |= limits.get(what, {})
                if ONE in case.beside:
                    taken[ONE] = one.get(what)
                if ALONE in case.beside:
                    taken[ALONE] = self._rests.get((sync.shape, sync.apply))
                rounds[case.name] = {who: samples for who, samples in taken.items() if samples}
        return rounds

    def _sync(self, who: str, sync: Sync) -> Mapping[str, Sequence[float]]:
        """Return seconds by quantity; empty for a peer that cannot do it, which is not tried again."""
        if (who in COPY_ONLY and sync.apply != "copy") or (who, sync) in self._failed:
            return {}
        few, many = (2, 5) if sync.shape != SMALL else (20, 100)
        arguments = {**sync.arguments, "count": few if self._quick else many}
        taken: Any = session.samples(who, self._standing[who], "sync", arguments)
        if not taken:
            self._failed.add((who, sync))
            return {}
        if who != OURS:
            return {what: taken[what] for what in (STAGED, TOTAL)}
        return {**taken, REST: [total - staged for staged, total in zip(taken[STAGED], taken[TOTAL], strict=True)]}

    def _limits(self, sync: Sync) -> dict[str, dict[str, Sequence[float]]]:
        """Return the parts that the whole family shares."""
        if sync.where:
            count = 2 if self._quick else 5
            limit = self._standing[LIMIT].ask("gloo_broadcast", size=sync.size, count=count)
            if sync.where != NARROW:
                return {TOTAL: {LIMIT: limit}}
            direct = self._standing[OURS].ask("direct", **sync.arguments, count=count)
            return {TOTAL: {LIMIT: limit, DIRECT: direct}}
        return self._small_limits(sync) if sync.shape == SMALL else self._large_limits(sync)

    def _large_limits(self, sync: Sync) -> dict[str, dict[str, Sequence[float]]]:
        count = 2 if self._quick else 5
        copies: Any = self._standing[LIMIT].ask("copies", size=sync.size, processes=sync.receivers, count=count)
        found: dict[str, dict[str, Sequence[float]]] = {STAGED: {}, TOTAL: {}}
        for name, prefix in (LIMIT, ""), (STREAMED, "moved_"):
            alone, together = copies[f"{prefix}alone"], copies[f"{prefix}together"]
            both = [one + others for one, others in zip(alone, together, strict=True)]
            found[STAGED][name] = alone
            found[TOTAL][name] = alone if sync.apply == "map" else both
        return found

    def _small_limits(self, sync: Sync) -> dict[str, dict[str, Sequence[float]]]:
        count = 20 if self._quick else 200
        echo = self._standing[LIMIT].ask("echo", processes=sync.receivers, count=count)
        control = self._standing[OURS].ask("control", receivers=sync.receivers, count=count)
        return {TOTAL: {LIMIT: echo, CONTROL: control}}


def start(name: str, options: Options) -> Standing:
    if name == LIMIT:
        return Standing(contestant.limits)
    opening = ("start", {"receivers": max(RECEIVERS)})
    if name in VERSIONS:
        return Standing(functools.partial(_ours, name, options), opening)
    return Standing(functools.partial(contestant.peer, name, options.peers_dir, kind="weights"), opening)


def start_nodes(name: str, options: Options) -> Standing:
    """Start ours on two nodes of this machine, or the limits."""
    if name == LIMIT:
        return Standing(contestant.limits)
    return Standing(functools.partial(_ours, name, options, "--num-nodes", "2", "--local-nodes", "2"), _FAR_OPENING)


def _ours(name: str, options: Options, *flags: str) -> contestant.Contestant:
    checkout = options.checkout(name)
    return contestant.ours(*flags, "--loop", options.loop, script="weights_ours.py", checkout=checkout)


def wanted(options: Options, among: Sequence[list[Sync]]) -> list[list[Sync]]:
    """Return the families of the wanted cases, with ten thousand tensors measured beside one."""
    found = []
    for family in among:
        syncs = [sync for sync in family if any(options.wants(case.name) for case in sync.cases().values())]
        if any(ONE in case.beside for sync in syncs for case in sync.cases().values()):
            syncs = [sync for sync in family if sync in syncs or sync.shape == "one"]
        if syncs:
            found.append(syncs)
    return found


def run(asked: Sequence[Sequence[Sync]], options: Options, starting: Callable[[str], Standing]) -> None:
    """Measure everything, in one session per peer or in one without; print the results, even after an interruption."""
    if not asked:
        return
    rounds: dict[str, list[Round]] = {}
    peers = options.peers or [None]
    unprinted = list(asked)
    try:
        for peer in peers:
            names = [OURS, LIMIT] if peer is None else [OURS, peer, LIMIT]
            with contestant.ended_in_order(), ExitStack() as stack:
                standing = {name: stack.enter_context(starting(name)) for name in names}
                measuring = Session(standing, options.quick)
                for family in asked:
                    for index in range(options.rounds):
                        for name, measured in measuring.round(family, backwards=index % 2 == 1).items():
                            rounds.setdefault(name, []).append(measured)
                    if peer == peers[-1]:
                        print_rows(unprinted.pop(0), rounds, options)
    finally:
        for family in unprinted:
            print_rows(family, rounds, options)


def print_rows(family: Sequence[Sync], rounds: Mapping[str, list[Round]], options: Options) -> None:
    for case in (case for sync in family for case in sync.cases().values()):
        if options.wants(case.name) and case.name in rounds:
            measure.print_row({**case.row(rounds[case.name]), "loop": options.loop})


def main(arguments: list[str] | None = None) -> None:
    options = parse("What it costs to send weights.", rounds=2, arguments=arguments, peers=PEERS)
    try:
        here = wanted(options, families(options.quick))
        run(here, options, functools.partial(start, options=options))
        alone = options.beside()
        nodes = wanted(alone, [far(options.quick, TWO_NODES, apply) for apply in APPLY])
        run(nodes, alone, functools.partial(start_nodes, options=alone))
        run_hosts(wanted(alone, [far(options.quick, TWO_HOSTS, apply) for apply in APPLY]), alone, _FAR_OPENING)
        opening = ("start", {"receivers": NARROW_RECEIVERS})
        run_hosts(wanted(alone, [narrow(options.quick)]), alone, opening, 1 + NARROW_RECEIVERS, RATE)
        run_gpu(alone)
        run_costs(alone)
    except ContestantError as error:
        sys.exit(str(error))


def run_hosts(
    asked: Sequence[Sequence[Sync]], options: Options, opening: Job, count: int = 2, rate: str | None = None
) -> None:
    """Measure on hosts with their own networks, if this machine can have them."""
    if not asked:
        return
    try:
        hosts = Hosts(options, count, rate)
    except RuntimeError as lack:
        print(f"no rows of hosts: {lack}", file=sys.stderr)
        return
    with hosts:
        run(asked, options, lambda name: hosts.start(name, opening, "weights_ours.py"))


def run_gpu(options: Options) -> None:
    asked = [each for each in one_gpu(options.quick) if options.wants(each.case.name)]
    if not asked:
        return
    with contestant.limits() as limits:
        if not limits.ask("gpus")[0]:
            print("no rows of one GPU: torch finds none on this machine", file=sys.stderr)
            return

    run_alone(asked, options, "--gpu")


def run_costs(options: Options) -> None:
    asked = [*costs(options.quick), *while_computing(options.quick), *digests(options.quick)]
    run_alone([each for each in asked if options.wants(each.case.name)], options)


def run_alone(asked: Sequence[Measurement], options: Options, *flags: str) -> None:
    """Measure with one receiver and no peer."""

    def starting(name: str) -> Standing:
        if name == LIMIT:
            return Standing(contestant.limits)
        return Standing(functools.partial(_ours, name, options, *flags), ("start", {"receivers": 1}))

    if asked:
        session.print_rows(asked, session.beside_each_peer(asked, starting, options), options)


if __name__ == "__main__":
    main()
