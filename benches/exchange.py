"""Set-up shared by the benches of data between workers: groups, hosts and launch commands."""

from __future__ import annotations

import functools
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Final

from . import contestant, session
from .contestant import ROOT
from .measure import LIMIT, VERSIONS
from .options import Options
from .session import Job, Measurement, Standing

KIBI: Final = 1 << 10
MEBI: Final = 1 << 20
GIBI: Final = 1 << 30
MEMCPY: Final = "memcpy, one thread"


def in_words(size: int) -> str:
    for unit, name in ((GIBI, "GiB"), (MEBI, "MiB"), (KIBI, "KiB")):
        if size >= unit:
            return f"{size // unit}{name}"
    return f"{size}B"


def up_to(sizes: Sequence[int], quick: bool) -> list[int]:
    """The sizes to measure: a quick run leaves the largest ones out."""
    return [size for size in sizes if not quick or size <= 64 * MEBI]


def copies(size: int, *, read: bool = False) -> Job:
    """The limit of a row of tensors: copies of 64 MiB at least; smaller ones stay in some processors' caches."""
    size = max(size, 64 * MEBI)
    return "copy", {"size": size, "count": max(1, 128 * MEBI // size), "read": read}


def start(name: str, options: Options, workers: int, *flags: str) -> Standing:
    """Ours, a peer, or the limits, on this machine."""
    if name == LIMIT:
        return Standing(contestant.limits)
    opening: Job = ("start", {"workers": workers})
    if name in VERSIONS:
        ours = functools.partial(contestant.ours, script="exchange_ours.py", checkout=options.checkout(name))
        return Standing(functools.partial(ours, "--loop", options.loop, *flags), opening)
    peer = functools.partial(contestant.peer, name, options.peers_dir, *flags, kind="exchange")
    return Standing(peer, opening)


def start_nodes(name: str, options: Options, workers: int) -> Standing:
    """Ours on two nodes that this machine plays, the first worker on one and the others on the other; or the limits."""
    flags = ("--num-nodes", "2", "--local-nodes", "2") if name in VERSIONS else ()
    return start(name, options, workers, *flags)


def run(measurements: Sequence[Measurement], starting: Callable[[str], Standing], options: Options) -> None:
    """Measures what is wanted of these and prints the rows."""
    wanted = [each for each in measurements if options.wants(each.case.name)]
    if wanted:
        session.print_rows(wanted, session.beside_each_peer(wanted, starting, options), options)


class Hosts:
    """Hosts that are network namespaces of this machine, each with an sshd; see ``tests/_support/fake_hosts.py``.

    Args:
        rate: of the first one's network, out of it, as ``tc`` reads it; by default whatever the machine can do.

    Raises:
        RuntimeError: this machine cannot have them, and why.
    """

    def __init__(self, options: Options, count: int = 2, rate: str | None = None) -> None:
        from tests._support.fake_hosts import FakeHosts, missing

        if options.against is not None:
            raise RuntimeError("hosts import the version that is installed, and not that of --against")
        if lack := missing():
            raise RuntimeError(lack)
        self._options = options
        self._rate = rate
        self._hosts = FakeHosts(count)

    def __enter__(self) -> Hosts:
        self._hosts.__enter__()
        if self._rate is not None:
            bucket = ["tbf", "rate", self._rate, "burst", "1mb", "latency", "50ms"]
            self._hosts[0].run(["tc", "qdisc", "add", "dev", "eth0", "root", *bucket])
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._hosts.__exit__(None, None, None)

    def start(self, name: str, opening: Job, script: str = "exchange_ours.py") -> Standing:
        """Ours over all hosts, launched as users do; or the limits between the first two."""
        if name == LIMIT:
            # in the hosts' networks only: from within one host the processes of another cannot be seen
            near, far = self._hosts[0], self._hosts[1]
            place = [near.address, far.address, "nsenter", f"--net={far.network}"]
            launch = ["nsenter", f"--net={near.network}", sys.executable]
            return Standing(functools.partial(contestant.limits, *place, launch=launch))
        launch = [sys.executable, "-m", "rlinf_launcher", "-q", "--ssh-args", shlex.join(self._hosts.ssh_args)]
        names = ",".join(host.hostname for host in self._hosts)
        command = self._hosts.driver.command([*launch, "--hosts", names], cwd=ROOT)
        ours = functools.partial(
            contestant.ours,
            *("--num-nodes", str(len(self._hosts)), "--loop", self._options.loop),
            script=script,
            launch=command,
        )
        return Standing(ours, opening)
