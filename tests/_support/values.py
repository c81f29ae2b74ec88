"""Kinds of values that people send, and workers that give, take and pass them on."""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import fractions
import ipaddress
import pathlib
import re
import types
import uuid
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from rlinf_async import Worker


class Colour(enum.Enum):
    RED = 1
    CRIMSON = 1  # noqa: PIE796  # an alias
    BLUE = 2


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: float
    y: float = 0.0


def _tensors() -> dict[str, Any]:
    flat = torch.arange(12, dtype=torch.float32)
    return {
        "tensor": flat.clone(),
        "tensor of no item": torch.empty(0, 3),
        "tensor of one number": torch.tensor(3.5),
        "strided tensor": flat.view(3, 4).t(),
        "bfloat16 tensor": flat.to(torch.bfloat16),
        "complex tensor": torch.complex(flat, flat),
        "tensor that requires grad": flat.clone().requires_grad_(),
        "parameter": nn.Parameter(flat.clone()),
        "frozen parameter": nn.Parameter(flat.clone(), requires_grad=False),
        "buffer": nn.Buffer(flat.clone()),
        "sparse tensor": torch.eye(3).to_sparse(),
        "tensors": [flat.clone(), flat.view(2, 6).clone()],
    }


def _of_torch() -> dict[str, Any]:
    shape = torch.ones(2, 3).shape
    with torch.random.fork_rng():
        torch.manual_seed(1)  # the same weights in every process
        model, sequence = nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    return {
        "shape": shape,
        "dtype": torch.bfloat16,
        "device": torch.device("cpu"),
        "layout": torch.strided,
        "memory format": torch.contiguous_format,
        "qscheme": torch.per_tensor_affine,
        "finfo of a dtype": torch.finfo(torch.float32).dtype,
        "torch generator": torch.Generator().manual_seed(7),
        "storage": torch.arange(4).untyped_storage().tolist(),
        "linear": model,
        "sequential": sequence,
        "loss": nn.MSELoss(),
        "module list": nn.ModuleList([nn.Identity()]),
        "distribution": torch.distributions.Normal(0.0, 1.0),
        "categorical": torch.distributions.Categorical(logits=torch.zeros(3)),
        "state dict": model.state_dict(),
        "optimiser state": torch.optim.Adam(model.parameters()).state_dict(),
        "torch function": torch.relu,
        "torch type": torch.nn.Linear,
        "dataset": torch.utils.data.TensorDataset(torch.arange(3)),
        "shape in a list": [shape],
        "dtype in a dict": {"dtype": torch.int8},
        "tensor and shape": [torch.ones(2), shape],
    }


def _of_numpy() -> dict[str, Any]:
    return {
        "array": np.arange(6.0).reshape(2, 3),
        "large array": np.zeros(40_000),
        "structured array": np.zeros(2, [("a", "i4"), ("b", "f8")]),
        "object array": np.array([1, "x", None], dtype=object),
        "numpy number": np.float32(1.5),
        "numpy dtype": np.dtype("f4"),
        "numpy generator": np.random.default_rng(3),
        "ufunc": np.add,
    }


def _of_python() -> dict[str, Any]:
    return {
        "none": None,
        "integer": 2**80,
        "text": "Größe \N{SNOWMAN}",
        "bytes": b"\0\xff" * 40_000,
        "bytearray": bytearray(b"abc"),
        "complex": 1j,
        "set": {1, 2},
        "frozenset": frozenset("ab"),
        "range": range(3, 9, 2),
        "slice": slice(1, None, 2),
        "ellipsis": ...,
        "deque": collections.deque([1, 2], maxlen=4),
        "counter": collections.Counter("abca"),
        "ordered dict": collections.OrderedDict(a=1),
        "default dict": collections.defaultdict(list, a=[1]),
        "namespace": types.SimpleNamespace(a=1),
        "named tuple": Point(1.0),
        "enum member": Colour.CRIMSON,
        "flag": Access.READ | Access.WRITE,
        "date": datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
        "decimal": decimal.Decimal("1.10"),
        "fraction": fractions.Fraction(1, 3),
        "path": pathlib.PurePosixPath("/a/b"),
        "pattern": re.compile("a+", re.IGNORECASE),
        "uuid": uuid.UUID(int=5),
        "address": ipaddress.ip_address("::1"),
        "type": dict,
        "function": re.match,
        "module": re,
        "error": ValueError("no"),
        "generic alias": dict[str, int],
    }


VALUES = {**_tensors(), **_of_torch(), **_of_numpy(), **_of_python()}


def traits(value: Any) -> Any:
    """Return text in which two values of a kind are equal exactly if they are alike."""
    kind = type(value)
    if isinstance(value, torch.Tensor):
        facts = (value.dtype, value.layout, tuple(value.shape), value.requires_grad)
        return f"{kind} {facts} {value.detach().to_dense().tolist()}"
    if isinstance(value, nn.Module):
        return f"{kind} {value} {traits(dict(value.state_dict()))}"
    if isinstance(value, torch.Generator):
        return traits(value.get_state())
    if isinstance(value, np.random.Generator):
        return str(value.bit_generator.state)
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape} {value.tolist()}"
    if isinstance(value, torch.utils.data.TensorDataset):
        return traits(list(value.tensors))
    if isinstance(value, dict):
        return f"{kind} { {key: traits(item) for key, item in value.items()} }"
    if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
        return f"{kind} {[traits(item) for item in value]}"
    if isinstance(value, set | frozenset):
        return f"{kind} {sorted(value)}"
    return re.sub(r" at 0x\w+", "", f"{kind} {value!r}")


class Trader(Worker):
    """Gives, takes and passes on values by name."""

    def take(self, value: Any) -> Any:
        return traits(value)

    def give(self, name: str) -> Any:
        return VALUES[name]

    async def stream(self, name: str) -> AsyncIterator[Any]:
        for _ in range(2):
            yield VALUES[name]

    async def send_all(self, to: str) -> None:
        for value in VALUES.values():
            for _ in range(2):
                await self.send(value, to, 0)

    async def receive_all(self, source: str) -> list[Any]:
        return [traits(await self.recv(source, 0)) for _ in range(2 * len(VALUES))]
