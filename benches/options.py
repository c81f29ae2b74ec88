"""Command-line options that all benches share."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from .contestant import HERE, PEERS
from .measure import AGAINST

PAIRS: Final = 20
"""Fewest rounds for a comparison of two versions: their median resolves 5 % despite other load on the machine."""


@dataclass(frozen=True)
class Options:
    """Values of the options that all benches share.

    Args:
        peers: names of the peers to measure.
        peers_dir: folder of their environments.
        rounds: number of rounds.
        quick: True for a smoke run of seconds, whose figures mean little.
        loop: event loop of our driver.
        only: parts of the names of the cases to measure; empty for all.
        against: checkout of another version to measure like a peer.
    """

    peers: tuple[str, ...]
    peers_dir: Path
    rounds: int
    quick: bool
    loop: str
    only: tuple[str, ...]
    against: Path | None = None

    def wants(self, case: str) -> bool:
        return not self.only or any(part in case for part in self.only)

    def beside(self, *peers: str) -> Options:
        """Return the same options with only these peers and, if wanted, another version."""
        return replace(self, peers=tuple(peer for peer in self.peers if peer in (*peers, AGAINST)))

    def checkout(self, name: str) -> Path | None:
        """Return the checkout with this contestant's package; None for the bench's own."""
        return self.against if name == AGAINST else None


def parse(
    description: str, *, rounds: int, arguments: list[str] | None = None, peers: Sequence[str] = PEERS
) -> Options:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--peer", action="append", choices=peers, default=[], help="measure it too; may be repeated")
    parser.add_argument("--peers-dir", type=Path, default=HERE / ".peers", help="folder of the peers' environments")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="measure another version too, by turns")
    parser.add_argument("--rounds", type=int, help=f"rounds of everybody (default {rounds}, {PAIRS} with --against)")
    parser.add_argument("--quick", action="store_true", help="one small round, to see that it works")
    parser.add_argument("--loop", choices=("asyncio", "uvloop"), default="asyncio", help="of our driver")
    parser.add_argument("--only", action="append", default=[], metavar="PART", help="cases with PART in their name")
    flags = parser.parse_args(arguments)
    if flags.rounds is None:
        flags.rounds = rounds if flags.against is None else max(rounds, PAIRS)
    if flags.rounds < 1:
        parser.error("--rounds must be at least 1")
    if flags.against is not None and not (flags.against / "rlinf_async" / "__init__.py").is_file():
        parser.error(f"--against {flags.against}: there is no rlinf_async in it, as a checkout has it")
    others = () if flags.against is None else (AGAINST,)
    return Options(
        peers=(*dict.fromkeys(flags.peer), *others),
        peers_dir=flags.peers_dir.absolute(),
        rounds=1 if flags.quick else flags.rounds,
        quick=flags.quick,
        loop=flags.loop,
        only=tuple(flags.only),
        against=None if flags.against is None else flags.against.resolve(),
    )
