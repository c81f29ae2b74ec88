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
    """Return the sizes to measure: a quick run leaves out the largest ones."""
    return [size for size in sizes if not quick or size <= 64 * MEBI]


def copies(size: int, *, read: bool = False) -> Job:
    """Return the limit for a row of tensors: copies of at least 64 MiB, which do not fit into a CPU's cache."""
    size = max(size, 64 * MEBI)
    return "copy", {"size": size, "count": max(1, 128 * MEBI // size), "read": read}


def start(name: str, options: Options, workers: int, *flags: str) -> Standing:
    """Start ours, a peer, or the limits, on this machine."""
    if name == LIMIT:
        return Standing(contestant.limits)
    opening: Job = ("start", {"workers": workers})
    if name in VERSIONS:
        ours = functools.partial(contestant.ours, script="exchange_ours.py", checkout=options.checkout(name))
        return Standing(functools.partial(ours, "--loop", options.loop, *flags), opening)
    peer = functools.partial(contestant.peer, name, options.peers_dir, *flags, kind="exchange")
    return Standing(peer, opening)


def start_nodes(name: str, options: Options, workers: int) -> Standing:
    """Start ours on two nodes of this machine (the first worker on one, the others on the other), or the limits."""
    flags = ("--num-nodes", "2", "--local-nodes", "2") if name in VERSIONS else ()
    return start(name, options, workers, *flags)


def run(measurements: Sequence[Measurement], starting: Callable[[str], Standing], options: Options) -> None:
    """Measure the wanted cases and print the rows."""
    wanted = [each for each in measurements if options.wants(each.case.name)]
    if wanted:
        session.print_rows(wanted, session.beside_each_peer(wanted, starting, options), options)


class Hosts:
    """Hosts that are network namespaces of this machine, each with an sshd; see ``tests/_support/fake_hosts.py``.

    Args:
        rate: bandwidth of the first host's outgoing network, as ``tc`` reads it; by default unlimited.

    Raises:
        RuntimeError: this machine cannot have such hosts; the message says why.
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
        """Start ours over all hosts, launched as users do; or the limits between the first two."""
        if name == LIMIT:
            # The peers run in the hosts' networks only: one host cannot see the processes of another.
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
