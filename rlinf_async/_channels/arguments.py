"""Validates a channel call's arguments, and encodes them into ``Put``, ``Get`` or ``QueueQuery``."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Final

from rlinf_async._channels.reading import WINDOW, ChannelItems
from rlinf_async._channels.request import Get, Put, QueueQuery
from rlinf_async._channels.state.channel_keys import canonical_key
from rlinf_async._core import codec
from rlinf_async._core.argument_checks import MAX_INTEGER, seconds, switch, whole_number
from rlinf_async._core.frames import LEASE, NOW, NOWAIT, READ, READ_SHARED, SOME, WAIT

_MAX_CACHED_KEYS: Final = 4096


class RequestArguments:
    """A factory for one ``Channel`` object's requests, from the arguments of its methods.

    The methods raise before any frame is sent: TypeError or ValueError for an invalid argument, SerializationError for
    an item that cannot be pickled.
    """

    def __init__(self, channel: str, max_bytes: int | None, noun: str = "channel") -> None:
        """Create a factory for a channel; ``max_bytes`` is set only for local channels, where 0 means no bound."""
        self._channel = channel
        self._noun = noun
        self._max_bytes = max_bytes
        self._keys: dict[Any, bytes] = {}

    def __repr__(self) -> str:
        return f"<RequestArguments of channel '{self._channel}'>"

    def put(self, item: Any, weight: int, key: Any, timeout: float | None, *, nowait: bool = False) -> Put:
        # A put costs only microseconds, so check plain arguments without a function call.
        if type(weight) is not int or not 0 <= weight <= MAX_INTEGER:
            weight = whole_number(weight, "weight", f"put() to {self._noun} '{self._channel}'")
        if timeout is not None:
            timeout = seconds(timeout, f"put() to {self._noun} '{self._channel}'")
            nowait = not timeout
        mode = NOWAIT if nowait else WAIT
        if self._max_bytes is not None:
            nbytes = codec.encode(item).nbytes if self._max_bytes else 0
            return Put(self._channel, key, self._key(key), weight, item, nbytes, mode, timeout)
        plain = codec.encode_plain(item)
        if plain is not None:
            return Put(self._channel, key, self._key(key), weight, plain, len(plain), mode, timeout)
        encoded = codec.encode(item, describe=f"an item for {self._noun} '{self._channel}'", root="item")
        return Put(self._channel, key, self._key(key), weight, encoded, encoded.nbytes, mode, timeout)

    def get(self, key: Any, timeout: float | None) -> Get[Any]:
        target = None
        if timeout is not None:
            timeout = seconds(timeout, f"get() from channel '{self._channel}'")
            target = None if timeout else NOW
        return Get("get() from", self._channel, key, self._key(key), target, timeout)

    def get_nowait(self, key: Any) -> Get[Any]:
        return Get("get_nowait() from", self._channel, key, self._key(key), NOW, None)

    def get_batch(self, weight: int, key: Any, timeout: float | None) -> Get[Any]:
        if type(weight) is not int or not 0 <= weight <= MAX_INTEGER:
            weight = whole_number(weight, "target_weight", f"get_batch() from channel '{self._channel}'")
        if timeout is not None:
            timeout = seconds(timeout, f"get_batch() from channel '{self._channel}'")
        target = [weight] if timeout == 0 else weight
        return Get("get_batch() from", self._channel, key, self._key(key), target, timeout)

    def get_many(self, n: int, key: Any, wait: bool, timeout: float | None) -> Get[list[Any]]:
        whose = f"get_many() from channel '{self._channel}'"
        n = whole_number(n, "n", whose, 1)
        mode = WAIT if switch(wait, "wait", whose, "n") else SOME
        if timeout is not None:
            if mode == SOME:
                raise TypeError(f"{whose}: with wait=False it gives what is there at once, and takes no timeout=")
            timeout = seconds(timeout, whose)
            mode = WAIT if timeout else NOWAIT
        return Get("get_many() from", self._channel, key, self._key(key), [n, mode], timeout)

    def lease(self, n: int, key: Any, timeout: float | None) -> Get[list[Any]]:
        whose = f"lease() of channel '{self._channel}'"
        n = whole_number(n, "n", whose, 1)
        lease_s = 0.0 if timeout is None else seconds(timeout, whose)
        if timeout is not None and (self._max_bytes is not None or not lease_s):
            why = "is local, and its leases end with their blocks" if lease_s else "could do nothing in 0 s"
            raise ValueError(f"{whose}: timeout={timeout!r}, but it {why}: leave it out")
        return Get("lease() of", self._channel, key, self._key(key), [n, LEASE, lease_s], None)

    def read(self, key: Any, window: int | None) -> tuple[Any, bytes, list[int]]:
        """Return the key, its canonical form, and the target for a loop's gets."""
        if window is not None:
            window = whole_number(window, "window", f"items() of channel '{self._channel}'", 1)
        elif self._max_bytes is not None:
            window = 1  # a local queue has no latency to hide
        return key, self._key(key), [WINDOW, READ_SHARED] if window is None else [window, READ]

    def next_of(self, reading: tuple[Any, bytes, list[int]], reader: ChannelItems) -> Get[None]:
        key, packed, target = reading
        return Get("get() from", self._channel, key, packed, list(target), None, weakref.ref(reader))

    def drain(self, key: Any) -> Get[list[Any]]:
        return Get("drain() from", self._channel, key, self._key(key), [MAX_INTEGER, SOME], None)

    def query(self, verb: str, key: Any, word: str, show: Callable[[Any], Any]) -> QueueQuery:
        return QueueQuery(f"{verb} of", self._channel, key, self._key(key), word, show)

    def _key(self, key: Any) -> bytes:
        try:
            return self._keys[key]
        except KeyError:
            if len(self._keys) >= _MAX_CACHED_KEYS:
                self._keys.clear()
            packed = self._keys[key] = canonical_key(key)
            return packed
