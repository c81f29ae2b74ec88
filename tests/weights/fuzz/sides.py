"""One side of an example, a source or a destination: its description as plain data, and the object made of it."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import torch
from tensordict import LazyStackedTensorDict, TensorDict, is_non_tensor, is_tensor_collection
from tensordict.nn import TensorDictParams
from torch import nn

Shape: TypeAlias = tuple[int, ...]
Part: TypeAlias = tuple[tuple[int, int], ...]

ROOM = 16
"""Elements behind a tensor of the form "roomy", for others that begin in it or behind it."""


@dataclass(frozen=True)
class Leaf:
    """A tensor.  Attributes: form: how it lies in memory; seed: its values, 3: with infinities and NaNs among them."""

    shape: Shape
    dtype: torch.dtype
    form: str = "plain"
    seed: int = 0


@dataclass(frozen=True)
class Tie:
    """A tensor in the memory of another one.

    Attributes:
        to: label of that one, on the same side; of the destination's if it begins with ">".
        how: "same" object, "view" of the same elements, "partial" overlap, the elements "adjacent" to it or between its
            own ("interleaved"), or the same ones "turned", in another order.
    """

    to: str
    how: str = "same"


@dataclass(frozen=True)
class Value:
    """What is not a tensor."""

    value: Any


@dataclass(frozen=True)
class Branch:
    """Children by key.

    Attributes:
        kind: "dict", "module", "td" (TensorDict), "params" (TensorDictParams); "dotted" and "tuple": such keys in the
            dict around it.
        batch: of a TensorDict.
        state: extra state of a module; absent where it is ``...``.
    """

    kind: str
    children: tuple[tuple[Any, Node], ...]
    batch: Shape = ()
    state: Any = ...


@dataclass(frozen=True)
class Stack:
    """A LazyStackedTensorDict."""

    dim: int
    members: tuple[Node, ...]


Node: TypeAlias = Leaf | Tie | Value | Branch | Stack


@dataclass(frozen=True)
class Place:
    """A tensor of a side, the part of a leaf that it holds, by dimension and index, and the leaf's name."""

    name: str
    part: Part
    tensor: torch.Tensor

    def of(self, leaf: torch.Tensor) -> torch.Tensor:
        for dim, index in self.part:
            leaf = leaf.select(dim, index)
        return leaf


class Plain(nn.Module):
    """Parameters and buffers."""


class Stateful(Plain):
    """The same with extra state, of which "bad" is refused."""

    state: Any = None

    def get_extra_state(self) -> Any:
        return self.state

    def set_extra_state(self, state: Any) -> None:
        if state == "bad":
            raise ValueError("bad states are not taken")
        self.state = state


def nodes(node: Node) -> Iterator[Node]:
    """The node and all below it."""
    yield node
    below = node.members if isinstance(node, Stack) else ()
    if isinstance(node, Branch):
        below = tuple(child for _, child in node.children)
    for child in below:
        yield from nodes(child)


def labelled(node: Node, label: str = "") -> Iterator[tuple[str, Leaf | Tie]]:
    """Tensors by label: ``"s[1].t.w"`` of ``s.t.w`` in the second member of a stack."""
    if isinstance(node, (Leaf, Tie)):
        yield label, node
    elif isinstance(node, Stack):
        for index, member in enumerate(node.members):
            yield from labelled(member, f"{label}[{index}]")
    elif isinstance(node, Branch):
        for key, child in node.children:
            yield from labelled(child, f"{label}.{key}" if label else str(key))


@dataclass
class Side:
    """The object that a description tells of.

    Args:
        spec: the description.
        other: the destination, for a source with tensors of it.

    Attributes:
        holder: the object.
        tensors: by label, as they were made; the holder may have other objects with their memory.
        places: tensors as the holder has them.
    """

    spec: Node
    other: Side | None = None
    holder: Any = field(init=False)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    places: list[Place] = field(default_factory=list)
    _parameters: dict[int, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        found = dict(labelled(self.spec))
        for label, leaf in found.items():
            if isinstance(leaf, Leaf):
                self.tensors[label] = formed(leaf)
        for label, tie in found.items():
            if isinstance(tie, Tie):
                other = self.other.tensors[tie.to[1:]] if self.other and tie.to[0] == ">" else self.tensors[tie.to]
                self.tensors[label] = beside(other, tie.how)
        self.holder = self._held(self.spec, "", "", (), "")

    def refill(self) -> None:
        """Other values, as after a step of training; ties stay."""
        with torch.no_grad():
            for label, leaf in labelled(self.spec):
                if isinstance(leaf, Leaf) and leaf.form not in ("meta", "sparse", "expanded", "number", "inference"):
                    self.tensors[label].copy_(content(leaf.shape, leaf.dtype, leaf.seed + 4))

    def _held(self, node: Node, label: str, name: str, part: Part, within: str) -> Any:
        if isinstance(node, Value):
            return node.value
        if isinstance(node, (Leaf, Tie)):
            tensor = self._kept(self.tensors[label], within)
            form = node.form if isinstance(node, Leaf) else "plain"
            self.places.append(Place(name, part, tensor))
            return tensor.item() if form == "number" else tensor.numpy() if form == "array" else tensor
        if isinstance(node, Stack):
            members = [
                self._held(member, f"{label}[{index}]", name, (*part, (node.dim, index)), "td")
                for index, member in enumerate(node.members)
            ]
            return LazyStackedTensorDict(*members, stack_dim=node.dim)
        inside = "params" if within == "params" else node.kind
        found = []
        for key, child in node.children:
            there, path = (f"{above}.{key}" if above else str(key) for above in (label, name))
            found.append((key, self._held(child, there, path, part, inside)))
        return _container(node, found)

    def _kept(self, tensor: torch.Tensor, within: str) -> torch.Tensor:
        """As a container keeps it; the same object for the same tensor."""
        if within not in ("module", "params"):
            return tensor
        if id(tensor) not in self._parameters:
            with torch.inference_mode(tensor.is_inference()):
                self._parameters[id(tensor)] = (nn.Parameter if tensor.is_floating_point() else nn.Buffer)(tensor)
        return self._parameters[id(tensor)]


def _container(node: Branch, found: list[tuple[Any, Any]]) -> Any:
    """Of a branch whose children have been made; for one without a container of its own they are in a list, by key."""
    kinds = {key: getattr(child, "kind", "") for key, child in node.children}
    children: dict[Any, Any] = {}
    for key, child in found:
        if kinds[key] == "dotted":
            children |= {f"{key}.{one}" if isinstance(one, str) else (key, *one): each for one, each in child}
        elif kinds[key] == "tuple":
            children |= {(key, one) if isinstance(one, str) else (key, *one): each for one, each in child}
        else:
            children[key] = child
    match node.kind:
        case "module":
            return _module(node.state, children)
        case "td":
            return TensorDict(children, batch_size=node.batch)
        case "params":
            return TensorDictParams(TensorDict(children, batch_size=node.batch))
        case "dict":
            return children
    return list(children.items())


def _module(state: Any, children: dict[str, Any]) -> nn.Module:
    module = Plain()
    if state is not ...:
        module = Stateful()
        module.state = state
    for key, child in children.items():
        if child is None:
            module.register_parameter(key, None)
        else:
            setattr(module, key, child)
    return module


# -- tensors ----------------------------------------------------------------------------------------------------------


@functools.lru_cache(4096)
def content(shape: Shape, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Values; not to be written to."""
    count = math.prod(shape)
    flat = (torch.arange(count) * 3 + seed * 7) % 11
    if seed % 4 == 3 and dtype.is_floating_point:
        special = torch.tensor([1 / 3, math.nan, -0.0, math.inf, 1e30, 70000.0, 1e-40, -seed / 7], dtype=torch.float64)
        return special.repeat(count // len(special) + 1)[:count].to(dtype).view(shape)
    return (flat % 2 if dtype is torch.bool else flat).to(dtype).view(shape)


def formed(leaf: Leaf) -> torch.Tensor:
    """A tensor of its own memory."""
    values = content(leaf.shape, leaf.dtype, leaf.seed)
    match leaf.form:
        case "plain" | "number" | "array":
            return values.clone()
        case "inference":
            with torch.inference_mode():
                return values.clone()
        case "meta":
            return values.to("meta")
        case "sparse":
            return values.to_sparse()
        case "negated":
            return torch._neg_view(values.clone())
        case "expanded":
            at = next(dim for dim, size in enumerate(leaf.shape) if size > 1)
            return values.narrow(at, 0, 1).clone().expand(leaf.shape)
    rows = _row_major(leaf.shape)
    strides = {"transposed": _row_major(leaf.shape[::-1])[::-1], "stepped": tuple(2 * step for step in rows)}
    memory = torch.zeros(4 * values.numel() + ROOM, dtype=leaf.dtype)
    tensor = memory.as_strided(leaf.shape, strides.get(leaf.form, rows))
    tensor.copy_(values)
    return tensor


def beside(tensor: torch.Tensor, how: str) -> torch.Tensor:
    """Another tensor in the same memory."""
    if how == "same":
        return tensor
    with torch.no_grad():
        if how == "view":
            return tensor.detach().view_as(tensor)
        if how == "turned":
            return tensor.as_strided(tensor.shape, _row_major(tensor.shape[::-1])[::-1], tensor.storage_offset())
        on = {"partial": max(tensor.numel() - 1, 0), "adjacent": tensor.numel(), "interleaved": 1}[how]
        return tensor.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset() + on)


def _row_major(shape: Shape) -> Shape:
    return tuple(math.prod(max(size, 1) for size in shape[dim + 1 :]) for dim in range(len(shape)))


# -- what a user sees -------------------------------------------------------------------------------------------------


class Entry(NamedTuple):
    """A tensor or value, with the module, dict or TensorDict that has it, and its key there."""

    name: str
    value: Any
    owner: Any
    key: Any


class Unseen(NamedTuple):
    """A tensor without values: on the meta device, or sparse."""

    layout: str
    dtype: torch.dtype
    shape: torch.Size


def entries(holder: Any, above: str = "") -> Iterator[Entry]:
    """All that a module, dict or TensorDict has, by public access only.

    Raises:
        TypeError: a key is neither a string nor a tuple of strings.
    """
    if isinstance(holder, nn.Module) and not is_tensor_collection(holder):
        found = [*holder.named_parameters("", False, False), *holder.named_buffers("", False, False)]
        found += holder._modules.items()
        if isinstance(holder, Stateful):
            found.append(("_extra_state", holder.state))
    else:
        found = list(holder.items())
    for key, value in found:
        parts = key if isinstance(key, tuple) else (key,)
        if not all(isinstance(part, str) for part in parts):
            raise TypeError(repr(key))
        name = ".".join((above, *parts)) if above else ".".join(parts)
        if is_non_tensor(value):
            yield Entry(name, value.data, holder, key)
        elif isinstance(value, (dict, nn.Module)) or is_tensor_collection(value):
            yield from entries(value, name)
        else:
            yield Entry(name, value, holder, key)


def seen(value: Any) -> Any:
    """A value as it is now: tensors as copies."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.is_meta or value.is_sparse:
        return Unseen("meta" if value.is_meta else "sparse", value.dtype, value.shape)
    return torch.empty(value.shape, dtype=value.dtype).copy_(value.detach())


def read(holder: Any) -> dict[str, Any]:
    """All that a destination shows now."""
    return {entry.name: seen(entry.value) for entry in entries(holder)}
