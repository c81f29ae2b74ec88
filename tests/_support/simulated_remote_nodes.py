"""A sender to other machines, whose receivers are on paper."""

from __future__ import annotations

import threading
from typing import Any

import torch

from rlinf_async.errors import ClosedError
from rlinf_async.weights import Manifest, ParamTree
from rlinf_async.weights.plane.far_nodes import FarNodes
from rlinf_async.work import Work
from tests._support.weight_parts import SlotWriter, Store, words as say

TREE = ParamTree.of({"a": torch.ones(256, dtype=torch.float32), "b": torch.ones(512, dtype=torch.float32)})
"""3072 bytes: pieces of 1024 and 2048."""


class Sent(Work[None]):
    def _abandon(self) -> None:
        self._settle(error=ClosedError("given up"))


class Link:
    def __init__(self, node: int) -> None:
        self.node = node
        self.label = f"the one on machine {node}"
        self.address: Any = None
        self.error = None
        self.tensors: list[tuple[int, torch.Tensor, Work[None]]] = []

    def send_tensor(self, tensor: torch.Tensor, line: int) -> Work[None]:
        self.tensors.append((line, tensor.clone(), Sent()))
        return self.tensors[-1][2]

    @property
    def sizes(self) -> list[int]:
        return [len(tensor) for _, tensor, _ in self.tensors]


class Outlet:
    """Receives on another machine."""

    def __init__(self, node: int = 1) -> None:
        self.link = Link(node)
        self.said: list[tuple[Any, ...]] = []

    def say(self, *words: Any) -> None:
        self.said.append(words)

    @property
    def line(self) -> int:
        """That it was told last."""
        return int([words[-1] for words in self.said if words[0] == say.HOST][-1])

    @property
    def words(self) -> list[str]:
        return [words[0] for words in self.said]


class Sender:
    """A store, and the machines that it sends to."""

    def __init__(self) -> None:
        self.store = Store(Manifest.of(TREE), 2)
        self.landed: list[tuple[list[Any], int, Any, str | None]] = []
        self.nodes = FarNodes(self._note, threading.RLock())

    def _note(self, outlets: Any, version: int, memory: Any, error: Exception | None) -> None:
        self.landed.append((list(outlets), version, memory, None if error is None else type(error).__name__))

    def room(self, outlet: Any, version: int) -> None:
        self.nodes.room(outlet, version, outlet.line)

    def answer(self, outlet: Any, version: int, failure: bytes | None, memory: Any) -> None:
        self.nodes.landed(outlet, version, failure, memory, outlet.line)

    def begin(self, version: int, *outlets: Any) -> tuple[int, SlotWriter]:
        slot = self.store.take()
        writer = self.store.writer(slot)
        assert self.nodes.begin(version, outlets, self.store, writer)
        return slot, writer

    def pack(self, slot: int, version: int) -> None:
        self.store.pack(slot, version, [tensor * version for tensor in TREE.tensors.values()], extra=b"more")
