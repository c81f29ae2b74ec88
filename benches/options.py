"""The flags that the benches share."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .contestant import HERE, PEERS


@dataclass(frozen=True)
class Options:
    """Values of the flags that all benches share.

    Args:
        peers: names of the peers to measure beside ours.
        peers_dir: where their environments are.
        rounds: how often everything is measured.
        quick: a smoke run of seconds, whose figures mean little.
        loop: the event loop of our driver.
        only: parts of the names of the cases to measure; empty for all.
    """

    peers: tuple[str, ...]
    peers_dir: Path
    rounds: int
    quick: bool
    loop: str
    only: tuple[str, ...]

    def wants(self, case: str) -> bool:
        return not self.only or any(part in case for part in self.only)

    def beside(self, *peers: str) -> Options:
        """The same, but with no other peers than these, where they are wanted; with none, ours is alone."""
        return replace(self, peers=tuple(peer for peer in self.peers if peer in peers))


def parse(
    description: str, *, rounds: int, arguments: list[str] | None = None, peers: Sequence[str] = PEERS
) -> Options:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--peer", action="append", choices=peers, default=[], help="measure it too; may be repeated")
    parser.add_argument("--peers-dir", type=Path, default=HERE / ".peers", help="folder of the peers' environments")
    parser.add_argument("--rounds", type=int, default=rounds, help="rounds of everybody (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="one small round, to see that it works")
    parser.add_argument("--loop", choices=("asyncio", "uvloop"), default="asyncio", help="of our driver")
    parser.add_argument("--only", action="append", default=[], metavar="PART", help="cases with PART in their name")
    flags = parser.parse_args(arguments)
    if flags.rounds < 1:
        parser.error("--rounds must be at least 1")
    return Options(
        peers=tuple(dict.fromkeys(flags.peer)),
        peers_dir=flags.peers_dir.absolute(),
        rounds=1 if flags.quick else flags.rounds,
        quick=flags.quick,
        loop=flags.loop,
        only=tuple(flags.only),
    )
