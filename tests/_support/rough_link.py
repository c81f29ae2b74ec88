"""A network cable of a fake host that delays, loses, doubles and reorders frames, and carries so many bytes a second.

    with RoughLink(hosts, 1, delay_s=0.1, jitter_s=0.05) as link:
        ...                      # node1 is that far from the others, each way
        link.loss = 0.05         # and from now on one frame in twenty is lost

It needs no netem: the host's interface and the port of the switch are TAP devices, and a thread carries the frames.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import random
import selectors
import struct
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Final

from tests._support.fake_hosts import FakeHosts, Host

_TUNSETIFF: Final = 0x400454CA
_IFF_TAP, _IFF_NO_PI = 0x0002, 0x1000
_CLONE_NEWNET: Final = 0x40000000
_FRAME_BYTES: Final = 2048
_QUEUE_BYTES: Final = 256 << 10
"""Of a direction with a ``rate``; what comes beyond is lost, as in a router."""


def missing() -> str | None:
    """What this machine lacks, or None."""
    return None if Path("/dev/net/tun").exists() else "a rough link needs /dev/net/tun (modprobe tun)"


class RoughLink:
    """The cable of one host.

    Attributes:
        delay_s, jitter_s: each frame takes ``delay_s`` ± up to ``jitter_s``; with jitter frames overtake each other.
        loss, duplication: shares of the frames.
        rate: bytes a second in each direction; 0 for no bound.
        blocks_in, blocks_out: nothing comes to the host, or from it.
        carried: frames so far.
    """

    def __init__(
        self,
        hosts: FakeHosts,
        number: int,
        *,
        delay_s: float = 0.0,
        jitter_s: float = 0.0,
        loss: float = 0.0,
        duplication: float = 0.0,
        rate: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.delay_s, self.jitter_s, self.loss, self.duplication, self.rate = delay_s, jitter_s, loss, duplication, rate
        self.carried = 0
        self.blocks_in = self.blocks_out = False
        self._random = random.Random(seed)
        self._queue: list[tuple[float, int, int, bytes]] = []
        """When, in which order, to which descriptor, what."""
        self._free_at: dict[int, float] = {}
        """When a direction with a rate has carried what it has taken."""
        self._ended = threading.Event()
        host, driver = hosts[number], hosts.driver
        name = f"rough{number}"
        self._there = _tap(driver, name)
        self._here = _tap(host, "rough")
        address = f"{host.address}/24"
        driver.run(["ip", "link", "set", name, "master", "switch", "up"])
        for command in (f"addr del {address} dev eth0", "link set eth0 down", "link set rough up"):
            host.run(["ip", *command.split()])
        host.run(["ip", "addr", "add", address, "dev", "rough"])
        self._thread = threading.Thread(target=self._carry, name=f"rough link of {host.hostname}", daemon=True)

    def __enter__(self) -> RoughLink:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        os.close(self._here)
        os.close(self._there)

    def _carry(self) -> None:
        other = {self._here: self._there, self._there: self._here}
        with selectors.DefaultSelector() as selector:
            for fd in other:
                selector.register(fd, selectors.EVENT_READ)
            while not self._ended.is_set():
                wait = self._queue[0][0] - time.monotonic() if self._queue else 0.1
                for key, _ in selector.select(min(max(wait, 0.0), 0.1)):
                    self._take(key.fd, other[key.fd])
                while self._queue and self._queue[0][0] <= time.monotonic():
                    _, _, to, frame = heapq.heappop(self._queue)
                    _write(to, frame)

    def _take(self, source: int, to: int) -> None:
        for _ in range(64):
            try:
                frame = os.read(source, _FRAME_BYTES)
            except BlockingIOError:
                return
            is_lost = self._random.random() < self.loss or (self.blocks_out if source == self._here else self.blocks_in)
            copies = 0 if is_lost else 1 + (self._random.random() < self.duplication)
            for _ in range(copies):
                self._send(to, frame)

    def _send(self, to: int, frame: bytes) -> None:
        now = time.monotonic()
        due = now
        if self.rate:
            due = max(now, self._free_at.get(to, 0.0))
            if (due - now) * self.rate > _QUEUE_BYTES:
                return
            due = self._free_at[to] = due + len(frame) / self.rate
        due += max(0.0, self.delay_s + self._random.uniform(-self.jitter_s, self.jitter_s))
        self.carried += 1
        heapq.heappush(self._queue, (due, self.carried, to, frame))


def _write(fd: int, frame: bytes) -> None:
    try:
        os.write(fd, frame)
    except OSError:  # its host is gone, or has more to take than it can: then the frame is lost
        pass


def _tap(host: Host, name: str) -> int:
    """A new TAP device in a host's network; frames are read from and written to the descriptor."""
    made: list[int] = []
    failed: list[OSError] = []

    def make() -> None:  # in a thread, which may change its network without the others
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            with open(host.network, "rb") as network:
                if libc.setns(network.fileno(), _CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), f"setns: {os.strerror(ctypes.get_errno())}")
            fd = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
            fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI))
            made.append(fd)
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return made[0]
