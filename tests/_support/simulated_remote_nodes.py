"""A source to other machines, whose receivers are on paper."""

from __future__ import annotations

import threading
from typing import Any

from rlinf_async._messaging.relay import Relay
from rlinf_async._messaging.state.relay_plan import RelayJob
from rlinf_async.errors import ClosedError
from rlinf_async.work import Work

NBYTES = 3072
"""Pieces of 1024 and 2048 bytes, where the first one has so many."""


class Sent(Work[None]):
    def _abandon(self) -> None:
        self._settle(error=ClosedError("given up"))


class Link:
    def __init__(self, node: int) -> None:
        self.node = node
        self.label = f"the one on machine {node}"
        self.address: Any = None
        self.error: Exception | None = None
        self.tensors: list[tuple[int, bytes, Work[None]]] = []

    def send_tensor(self, tensor: bytes, stream_id: int) -> Work[None]:
        self.tensors.append((stream_id, bytes(tensor), Sent()))
        return self.tensors[-1][2]

    @property
    def sizes(self) -> list[int]:
        return [len(tensor) for _, tensor, _ in self.tensors]


class Receiver:
    """Receives on another machine."""

    def __init__(self, node: int = 1) -> None:
        self.link = Link(node)
        self.said: list[tuple[Any, ...]] = []

    def send_message(self, *words: Any) -> None:
        self.said.append(words)

    @property
    def stream_id(self) -> int:
        """That it was told last."""
        return int([words[-1] for words in self.said if words[0] == "host"][-1])

    @property
    def words(self) -> list[str]:
        return [words[0] for words in self.said]


class Payload(RelayJob):
    """A payload whose bytes are its number; counts how often its memory is held."""

    def __init__(self, number: int, seconds: float = 60.0) -> None:
        super().__init__(number, NBYTES, seconds)
        self.body = bytearray(NBYTES)
        self.holds = 0

    def pin(self) -> None:
        self.holds += 1

    def unpin(self) -> None:
        assert self.holds
        self.holds -= 1

    def pack(self) -> None:
        self.body[:] = bytearray([self.number]) * NBYTES
        self.packed = NBYTES

    def publish(self) -> Payload:
        self.pack()
        self.facts = (b"more", 0)
        return self


class Sender:
    """A source with the payload that it has published last, and the machines that it sends to."""

    def __init__(self, chain_from: int = NBYTES + 1) -> None:
        self.ended: list[tuple[list[Any], int, Any, str | None]] = []
        self.latest: Payload | None = None
        self.payloads: list[Payload] = []
        self.receivers: list[Receiver] = []
        self.relay = Relay(self, threading.RLock(), chain_from)
        self.plan = self.relay.plan

    def appoint(self, receiver: Receiver, stream_id: int) -> None:
        receiver.send_message("host", stream_id)

    def inform(self, receiver: Receiver, memory: Any, number: int) -> None:
        receiver.send_message("hello", memory, number)

    def end(self, receivers: Any, number: int, memory: Any, error: Exception | None) -> None:
        self.ended.append((list(receivers), number, memory, None if error is None else type(error).__name__))

    def join(self, *receivers: Receiver) -> None:
        self.receivers += receivers
        for receiver in receivers:
            self.relay.act(self.plan.join, receiver, self.latest)

    def leave(self, receiver: Receiver) -> None:
        self.relay.act(self.plan.leave, receiver)

    def catch_up(self, receiver: Receiver) -> None:
        if self.latest is not None:
            self.relay.act(self.plan.catch_up, receiver, self.latest)

    def room(self, receiver: Receiver, number: int) -> None:
        self.relay.on_message(receiver, "room", number, receiver.stream_id)

    def landed(self, receiver: Receiver, number: int, failure: bytes | None, memory: Any, stream_id: int) -> None:
        self.relay.on_message(receiver, "landed", number, failure, memory, stream_id)

    def answer(self, receiver: Receiver, number: int, failure: bytes | None, memory: Any) -> None:
        self.landed(receiver, number, failure, memory, receiver.stream_id)

    def stuck(self, receiver: Receiver, stream_id: int, failure: bytes) -> None:
        self.relay.on_message(receiver, "stuck", stream_id, failure)

    def begin(self, number: int, *receivers: Receiver) -> Payload:
        payload = Payload(number)
        self.payloads.append(payload)
        assert self.relay.act(self.plan.begin, payload, receivers)
        return payload

    def publish(self, payload: Payload, *receivers: Receiver) -> None:
        if payload not in self.payloads:
            self.payloads.append(payload)
        if self.latest is not None and self.latest is not payload:
            self.latest.is_current = False
        self.latest = payload.publish()
        self.relay.act(self.plan.publish, payload, receivers)

    def abandon(self, number: int) -> None:
        self.relay.act(self.plan.abandon, number, self.latest)

    def close(self) -> None:
        self.relay.act(self.plan.close)
        for receiver in self.receivers:
            for *_, work in receiver.link.tensors:
                work._settle()
        assert [payload.holds for payload in self.payloads if payload.holds] == [], "nothing is held any more"
