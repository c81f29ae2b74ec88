"""The places in a destination: the tensors and values of modules, mappings and TensorDicts, found in one walk."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn

from rlinf_async.errors import WeightMismatch
from rlinf_async.weights.model.naming import Naming
from rlinf_async.weights.model.param_tree import (
    EXTRA_STATE,
    Path,
    are_tied,
    has_extra_state,
    is_non_tensor,
    is_tensordict,
    key_path,
    name_of,
)
from rlinf_async.weights.model.shards import ShardOption, Slice, Spec, is_sharded, slices_of


class StackPart(NamedTuple):
    """One stack member's part of a leaf: index ``member`` of ``size`` along ``dimension``."""

    dimension: int
    member: int
    size: int


class TensorPlace(NamedTuple):
    """One tensor of a destination.

    Attributes:
        owner, key: the mapping that holds the tensor, and the tensor's key in it.
        parts: one for each enclosing lazy stack, outermost first; empty if the place takes the whole leaf.
        slices: slices of the leaf, or of the leaf's part, if ``tensor`` is a shard.
        whole: the DTensor in the mapping whose local part is ``tensor``; None if the mapping holds ``tensor`` itself.
    """

    path: Path
    owner: Any
    key: Any
    tensor: torch.Tensor
    parts: tuple[StackPart, ...] = ()
    slices: tuple[Slice, ...] = ()
    whole: Any = None

    @property
    def held(self) -> Any:
        """The tensor that the mapping holds."""
        return self.tensor if self.whole is None else self.whole

    def sliced(self, leaf: torch.Tensor, shard: ShardOption) -> TensorPlace:
        """Return this place with its slices of the leaf.

        Args:
            shard: mesh and placements of plain tensors that are shards.

        Raises:
            WeightMismatch: a shard's shape differs from this rank's part of the leaf.
        """
        if self.whole is not None and is_sharded(leaf):
            return self._replace(tensor=self.whole, whole=None)  # torch redistributes the leaf
        spec: Spec | None
        if self.whole is not None:
            spec = self.whole.device_mesh, self.whole.placements
        else:
            spec = shard(name_of(self.path), self.tensor) if callable(shard) else shard
        if spec is None:
            return self
        shape = list(self.of(leaf).shape)
        try:
            found = self._replace(slices=slices_of(shape, spec))
        except WeightMismatch as error:
            raise WeightMismatch(f"{self} {error.args[0]}") from None
        mine, theirs = list(self.tensor.shape), list(found.of(leaf).shape)
        if mine != theirs or (self.whole is not None and list(self.whole.shape) != shape):
            raise WeightMismatch(
                f"{self} has shape {shape} in the weights, of which this rank's shard has {theirs}, and "
                f"its shard in the destination has {mine}"
            )
        return found

    def __str__(self) -> str:
        members = "".join(f" (member {part.member} of the stack)" for part in self.parts)
        return f"{name_of(self.path)!r}{members}"

    def of(self, leaf: torch.Tensor) -> torch.Tensor:
        """Return this place's part of the leaf, as a view.

        Raises:
            WeightMismatch: the leaf's shape does not match the stack.
        """
        part = leaf
        for dimension, member, size in self.parts:
            if part.dim() <= dimension or part.shape[dimension] != size:
                raise WeightMismatch(
                    f"{self} is in a stack of {size} along dimension {dimension} in the destination, and has shape "
                    f"{list(leaf.shape)} in the weights"
                )
            part = part.select(dimension, member)
        for each in self.slices:
            part = piece_of(part, each)
        return part


def piece_of(tensor: torch.Tensor, part: Sequence[int]) -> torch.Tensor:
    """Return the part of a tensor selected by a ``StackPart`` or ``Slice``, either possibly as plain data."""
    if len(part) == len(Slice._fields):
        return tensor.narrow(*part[:3])
    return tensor.select(*part[:2])


class ValuePlace(NamedTuple):
    """The place of a value other than a tensor: a module's extra state, or an entry of a mapping.

    Attributes:
        problem: returns why a value cannot be put there; empty if it can.
    """

    get: Callable[[], Any]
    put: Callable[[Any], Any]
    problem: Callable[[Any], str] = lambda value: ""


class _MemberValues(list[Any]):
    """The values of lazy stacks' members, in the order in which the members were found."""


def _stacked(members: list[tuple[tuple[StackPart, ...], Any, Any]]) -> ValuePlace:
    """Return one place for the values under one key of lazy stacks' members, set from nested lists."""

    def of(value: Any, parts: tuple[StackPart, ...]) -> Any:
        for part in parts:
            value = _member(value, *part)
        return value

    def put(values: Any) -> None:
        from tensordict import NonTensorData

        found = values if isinstance(values, _MemberValues) else [of(values, parts) for parts, _, _ in members]
        for (_, holder, key), value in zip(members, found, strict=True):
            holder[key] = NonTensorData(value)  # TensorDict would turn a list into a stack, and a number into a tensor

    def problem(values: Any) -> str:
        try:
            for parts, _, _ in members:
                of(values, parts)
        except (TypeError, IndexError) as error:
            return f"is in a lazy stack, whose members each get one of a list of values: {error}"
        return ""

    return ValuePlace(lambda: _MemberValues(holder[key] for _, holder, key in members), put, problem)


def _member(values: Any, dimension: int, member: int, size: int) -> Any:
    if not isinstance(values, list):
        raise TypeError(f"{type(values).__name__} is no list")
    if dimension:
        return [_member(each, dimension - 1, member, size) for each in values]
    if len(values) != size:
        raise IndexError(f"there are {len(values)} for {size} members")
    return values[member]


@dataclass(frozen=True)
class Places:
    """All places in a destination by path.

    Attributes:
        tensors: maps each path to its tensors' places, several if stack members share the path. A tied tensor is listed
            at each of its paths.
        refused: maps each unwritable path to the reason.
        holders: ``(owner, key, holder)`` of each module and mapping below the top level.
        stacks: lazy stacks with their members.
    """

    tensors: dict[Path, list[TensorPlace]] = field(default_factory=dict)
    values: dict[Path, ValuePlace] = field(default_factory=dict)
    refused: dict[Path, str] = field(default_factory=dict)
    holders: list[tuple[Any, Any, Any]] = field(default_factory=list)
    stacks: list[tuple[Any, list[Any]]] = field(default_factory=list)
    _stacked: dict[Path, list[tuple[tuple[StackPart, ...], Any, Any]]] = field(default_factory=dict)

    @classmethod
    def of(cls, destination: Any, naming: Naming | None = None) -> Places:
        """Find all places.

        Args:
            naming: mapping from the destination's paths to the sender's.

        Raises:
            WeightMismatch: a key is not a string, or two keys mean the same path.
        """
        found = cls()
        found._walk(destination, (), ())
        found.values.update({path: _stacked(members) for path, members in found._stacked.items()})
        if naming:
            for each in (found.tensors, found.values, found.refused):
                renamed = naming.all_of(each)
                each.clear()
                each.update(renamed)
            for path, places in found.tensors.items():
                found.tensors[path] = [place._replace(path=path) for place in places]
        return found

    def _walk(self, holder: Any, above: Path, parts: tuple[StackPart, ...]) -> None:
        # Check for TensorDicts before modules: TensorDictParams are both, and their _parameters may be copies.
        if is_tensordict(holder):
            inner = getattr(holder, "__dict__", {}).get("_param_td", holder)
            if inner is not holder:
                self.holders.append((vars(holder), "_param_td", inner))
                self._walk(inner, above, parts)
            elif hasattr(holder, "tensordicts"):
                members = list(holder.tensordicts)
                self.stacks.append((holder, members))
                for index, member in enumerate(members):
                    self._walk(member, above, (*parts, StackPart(holder.stack_dim, index, len(members))))
            else:
                self._walk_mapping(holder, above, parts)
        elif isinstance(holder, nn.Module):
            self._walk_module(holder, above, parts)
        else:
            self._walk_mapping(holder, above, parts)

    def _walk_mapping(self, holder: Any, above: Path, parts: tuple[StackPart, ...]) -> None:
        keeps = type(holder) is dict or type(holder) is getattr(sys.modules.get("tensordict"), "TensorDict", None)
        for key, value in holder.items():
            path = key_path(key, above)
            if path[-1] == EXTRA_STATE or is_non_tensor(value):
                self._add_value(path, holder, key, parts)
            elif isinstance(value, (Mapping, nn.Module)) or is_tensordict(value):
                self.holders.append((holder, key, value))
                self._walk(value, path, parts)
            elif not isinstance(value, torch.Tensor):
                self._add_value(path, holder, key, parts)
            # Look the key up twice, because writes would be lost if the mapping returned a new tensor each time, as h5
            # files and views of a TensorDict do.
            elif keeps or are_tied(holder.get(key), value):
                self._add(TensorPlace(path, holder, key, value, parts))
            else:
                self.refused[path] = f"is made anew by {type(holder).__name__} at every look: it has no memory there"

    def _walk_module(self, module: nn.Module, above: Path, parts: tuple[StackPart, ...]) -> None:
        for owner in (module._parameters, module._buffers):
            for name, tensor in owner.items():
                if tensor is not None:
                    self._add(TensorPlace((*above, name), owner, name, tensor, parts))
        if type(module).set_extra_state is not nn.Module.set_extra_state:
            get = module.get_extra_state if has_extra_state(module) else lambda: None
            self.values[(*above, EXTRA_STATE)] = ValuePlace(get, module.set_extra_state)
        for name, part in module._modules.items():
            if part is not None:
                self.holders.append((module._modules, name, part))
                self._walk(part, (*above, name), parts)

    def _add(self, place: TensorPlace) -> None:
        if is_sharded(place.tensor):
            place = place._replace(tensor=_local(place.tensor), whole=place.tensor)
        there = self.tensors.setdefault(place.path, [])
        if there and there[-1].parts == place.parts:
            raise WeightMismatch(f"{name_of(place.path)!r} is there twice, once dotted and once nested")
        there.append(place)

    def _add_value(self, path: Path, holder: Any, key: Any, parts: tuple[StackPart, ...]) -> None:
        if parts:
            self.refused[path] = "is no tensor in a lazy stack of the destination, and one in the weights"
            self._stacked.setdefault(path, []).append((parts, holder, key))
        else:
            self.values[path] = ValuePlace(lambda: holder[key], lambda value: holder.__setitem__(key, value))


def _local(whole: Any) -> torch.Tensor:
    """Return the tensor object inside a DTensor; ``to_local`` would return a view while gradients are recorded."""
    local: torch.Tensor = whole._local_tensor
    return local
