"""The fit of weights to a destination: keys, shapes, dtypes, writability, ties and overlaps, checked before any
write."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import starmap
from typing import Any, Final

import torch
from torch.nn.parameter import is_lazy

from rlinf_async.errors import WeightMismatch
from rlinf_async.weights.model.copying import are_alike, are_contiguous, as_integers
from rlinf_async.weights.model.manifest import Manifest, dtype_of
from rlinf_async.weights.model.naming import Naming, advice
from rlinf_async.weights.model.overlap import overlaps
from rlinf_async.weights.model.param_tree import (
    EXTRA_STATE,
    ParamTree,
    Path,
    are_tied,
    local_part,
    memory_of,
    name_of,
    why_without_values,
)
from rlinf_async.weights.model.places import Places, StackPart, TensorPlace, ValuePlace
from rlinf_async.weights.model.shards import ShardOption, Slice, is_sharded

_NAMED: Final = 5  # limit on the problems that an error names
_LISTED: Final = 20  # limit on the keys that an error lists for each side
_FORM: Final = (operator.attrgetter("dtype"), operator.attrgetter("device"), operator.attrgetter("shape"))


class Fit:
    """The tensors of a destination, and the leaves assigned to them; the constructor raises if they do not fit.

    Args:
        maps: remap tensors to the leaves instead of overwriting them.
        strict_dtype: refuse to cast.
        mapped: tensors that are currently mapped to leaves, and get separate memory before a copy.
        naming: mapping of the destination's tensor names; None if they cannot be renamed.
        shard: mesh and placements of plain tensors that are shards, or a function of name and tensor that returns them.

    Attributes:
        targets: tensors to write, each once.
        chosen: place and leaf index of each target.
        ties: pairs of places that are one tensor in the destination and several in the weights.
        maps: True if the tensors can be mapped.
        why_copied: reason why the tensors cannot be mapped.
        wholes: DTensors whose local parts are among the targets.
        is_inference: True if some tensors were created under ``torch.inference_mode()``.

    Raises:
        WeightMismatch: the weights do not fit; the error names the first five problems, and both sides' keys.
    """

    def __init__(
        self,
        destination: Any,
        weights: ParamTree | Manifest,
        *,
        maps: bool = False,
        strict_dtype: bool = False,
        mapped: Sequence[torch.Tensor] = (),
        naming: Naming | None = None,
        shard: ShardOption = None,
    ) -> None:
        leaves, names = _leaves_of(weights)
        try:
            places = Places.of(destination, naming)
        except WeightMismatch as error:
            raise _mismatch([str(error)]) from None
        self._values, self._paths, self._stacks = places.values, frozenset(places.tensors), places.stacks
        self._replaced: list[tuple[ValuePlace, int]] = []
        self._pairs: list[tuple[TensorPlace, int]] = []
        parts: list[torch.Tensor] = []
        self._shard = shard
        problems = list(self._match(places, leaves, names, parts))
        self.why_copied = _why_copied(self._pairs, parts) if maps else ""
        self.maps = maps and not self.why_copied
        tensors = [place.tensor for place, _ in self._pairs]
        is_simple = are_alike(tensors, parts) and are_contiguous(tensors)
        is_simple = is_simple and all(_can_copy(kind, kind) for kind in set(map(_FORM[0], parts)))
        if not is_simple:
            judged = (_problem(*pair, maps=self.maps, strict=strict_dtype) for pair in zip(tensors, parts, strict=True))
            problems += [f"{place} {why}" for (place, _), why in zip(self._pairs, judged, strict=True) if why]
        others = [place for path, found in places.tensors.items() if path not in names for place in found]
        problems = problems or self._choose(tensors, others, is_simple, set(map(id, mapped)))
        if problems:
            sides = {*self._paths, *self._values}, names
            raise _mismatch(problems, *sides, hint=advice(*sides) if naming is not None else "")
        self.is_inference = any(map(torch.Tensor.is_inference, self.targets))
        self._held = [*places.holders, *((place.owner, place.key, place.held) for place, _ in self._pairs)]
        self._locals = [(place.whole, place.tensor) for place, _ in self._pairs if place.whole is not None]
        self.wholes = [whole for whole, _ in self._locals]
        self._forms = [(attribute, list(map(attribute, self.targets))) for attribute in _FORM]
        del self._pairs

    def _match(
        self, places: Places, leaves: Sequence[torch.Tensor], names: Mapping[Path, int], parts: list[torch.Tensor]
    ) -> Iterator[str]:
        """Assign each place its part of a leaf; yield the problems that prevent this."""
        for path, index in names.items():
            leaf, found = leaves[index], places.tensors.get(path)
            # A leaf that is copied unchanged into a single place is checked together with that place.
            if (found is None or found[0].parts) and (why := why_without_values(leaf, "in the weights")):
                yield f"{name_of(path)!r} {why}"
            elif found is not None:
                try:
                    found = [place.sliced(leaf, self._shard) for place in found]
                    own = [place.of(leaf) for place in found]
                except WeightMismatch as error:
                    yield str(error)
                    continue
                if found[0].parts and not found[0].slices and sum(part.numel() for part in own) != leaf.numel():
                    yield f"{name_of(path)!r} is not in all members of the stack"
                self._pairs += [(place, index) for place in found]
                parts += own
            elif path in places.values and path not in places.refused:
                self._replaced.append((places.values[path], index))
            else:
                yield f"{name_of(path)!r} {places.refused.get(path, 'is not in the destination')}"

    def _choose(
        self, tensors: Sequence[torch.Tensor], others: Sequence[TensorPlace], is_simple: bool, mapped: Collection[int]
    ) -> list[str]:
        """Choose the tensors to write, each once; return problems with shared memory.

        Args:
            others: places without a leaf; each gets the values of a place that shares its memory.
            mapped: ids of tensors that share memory only because they are mapped.
        """

        def memory(place: TensorPlace) -> Any:
            return id(place.tensor) if id(place.tensor) in mapped else memory_of(place.tensor)

        self.ties: list[tuple[tuple[TensorPlace, int], tuple[TensorPlace, int]]] = []
        others = [place for place in others if not why_without_values(place.tensor)]
        everything = (*tensors, *(place.tensor for place in others))
        addresses = set(map(torch.Tensor.data_ptr, everything)) if is_simple else ()
        by_memory: dict[Any, tuple[TensorPlace, int]] = {}
        if len(addresses) == len(everything):
            by_memory = dict(enumerate(self._pairs))  # no tensors are tied
        else:
            for pair in self._pairs:
                first = by_memory.setdefault(memory(pair[0]), pair)
                if (first[0].parts, first[1]) != (pair[0].parts, pair[1]):
                    self.ties.append((first, pair))
            tied = [(place, by_memory.get(memory(place))) for place in others]
            self._pairs += [
                (place._replace(parts=of[0].parts, slices=of[0].slices), of[1]) for place, of in tied if of is not None
            ]
            others = [place for place, of in tied if of is None]
        chosen = by_memory
        if self.maps:
            # A copy to one of two objects that share memory reaches both, but each object must be mapped separately.
            chosen = {}
            for pair in self._pairs:
                chosen.setdefault(id(pair[0].tensor), pair)
        self.chosen = list(chosen.values())
        self._indices = [index for _, index in self.chosen]
        self._members = [
            (number, place) for number, (place, _) in enumerate(self.chosen) if place.parts or place.slices
        ]
        self.targets = [place.tensor for place, _ in self.chosen]
        apart = [place for place, _ in by_memory.values() if id(place.tensor) not in mapped]
        others = [place for place in others if id(place.tensor) not in mapped]
        both = [*apart, *others]
        return [
            f"{_both(both[one], both[other])} share a part of their memory in the destination: give each memory of "
            "its own"
            for one, other in overlaps([place.tensor for place in apart], [place.tensor for place in others])
        ]

    @functools.cached_property
    def _owners(self) -> list[tuple[Any, list[Any], list[Any]]]:
        """The destination's mappings, each with its keys and the tensors and modules under them."""
        found: dict[int, tuple[Any, list[Any], list[Any]]] = {}
        for owner, key, item in self._held:
            if id(owner) not in found:
                found[id(owner)] = owner, [], []
            found[id(owner)][1].append(key)
            found[id(owner)][2].append(item)
        del self._held
        return list(found.values())

    def is_held(self) -> bool:
        """True if the destination still has the same tensor objects."""
        if any(whole._local_tensor is not local for whole, local in self._locals):
            return False
        return all(starmap(_still_has, self._owners)) and all(starmap(_still_stacks, self._stacks))

    def is_current(self) -> bool:
        """True if the tensor objects, dtypes, devices and shapes are still the same; takes microseconds per tensor."""
        # Compare one shape at a time, because keeping ten thousand would trigger a garbage collection, which takes far
        # longer.
        return self.is_held() and all(
            all(map(operator.eq, map(attribute, self.targets), form)) for attribute, form in self._forms
        )

    def check(self, leaves: Sequence[torch.Tensor], extra: Mapping[Path, Any]) -> None:
        """Check a version's values.

        Raises:
            WeightMismatch: tensors that are tied in the destination would get different values; or a value other than a
                tensor has the key of a tensor, or has no place in the destination.
        """
        problems = [
            f"{_both(one, other)} are tied in the destination, and their values differ: tie them in the weights too, "
            "or give each memory of its own"
            for (one, of), (other, of_other) in self.ties
            if _differ(one.tensor, one.of(leaves[of]), other.of(leaves[of_other]))
        ]
        for path, value in extra.items():
            if path in self._paths:
                kind = type(value).__name__
                problems.append(f"{name_of(path)!r} is a tensor in the destination and {kind} in the weights")
            elif path in self._values:
                if why := self._values[path].problem(value):
                    problems.append(f"{name_of(path)!r} {why}")
            elif not (value is None and path[-1] == EXTRA_STATE):
                problems.append(f"{name_of(path)!r} is not in the destination")
        if problems:
            raise _mismatch(problems)

    def sources(self, leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return each target's source: a leaf, or part of a leaf."""
        found = list(map(leaves.__getitem__, self._indices))
        for number, place in self._members:
            found[number] = place.of(found[number])
        return found

    def held(self) -> list[tuple[int, Sequence[StackPart | Slice], torch.Tensor]]:
        """Return the leaves' indices, their parts, and the tensors that now hold them."""
        places = [*self.chosen, *(tied for _, tied in self.ties)]
        held: list[tuple[int, Sequence[StackPart | Slice], torch.Tensor]] = [
            (index, (*place.parts, *place.slices), place.tensor) for place, index in places
        ]
        return held + [(index, (), value.get()) for value, index in self._replaced]

    def replacements(self, leaves: Sequence[torch.Tensor], extra: Mapping[Path, Any]) -> list[tuple[ValuePlace, Any]]:
        """Return the destination's values with their replacements; tensors are copied."""
        given = [(self._values[path], value) for path, value in extra.items() if path in self._values]
        return given + [(value, leaves[index].detach().clone()) for value, index in self._replaced]


def _leaves_of(weights: ParamTree | Manifest) -> tuple[list[torch.Tensor], Mapping[Path, int]]:
    """Return the leaves, and each path's leaf index; the leaves of a manifest have no memory of their own."""
    if isinstance(weights, ParamTree):
        index = {path: number for number, path in enumerate(weights.tensors)}
        names = index | {path: index[owner] for path, owner in weights.aliases.items()}
        return list(weights.tensors.values()), names
    kinds = {leaf.transport_dtype for leaf in weights.leaves}
    ones = {kind: torch.empty((), dtype=dtype_of(kind)) for kind in kinds}
    return [ones[leaf.transport_dtype].expand(leaf.shape) for leaf in weights.leaves], weights.indices


def _both(one: TensorPlace, other: TensorPlace) -> str:
    return " and ".join(sorted((str(one), str(other))))


def _why_copied(pairs: Sequence[tuple[TensorPlace, int]], parts: Sequence[torch.Tensor]) -> str:
    for (place, _), part in zip(pairs, parts, strict=True):
        if place.tensor.dtype is not part.dtype:
            return (
                f"{place} travels as {part.dtype} and is {place.tensor.dtype} here: transport_dtype= has it travel so, "
                "and strict_dtype=True refuses it"
            )
        if any(of.dimension for of in place.parts):
            return f"{place} is stacked along dimension {place.parts[-1].dimension}, where members are not contiguous"
        if place.slices and not part.is_contiguous():
            return f"{place} is a shard that is not contiguous in the weights"
        if not is_lazy(place.tensor) and place.tensor.is_inference():
            return f"{place} was made under torch.inference_mode()"
    devices = {place.tensor.device for place, _ in pairs}
    return f"the tensors are on several devices, {', '.join(sorted(map(str, devices)))}" if len(devices) > 1 else ""


def _problem(target: torch.Tensor, source: torch.Tensor, *, maps: bool, strict: bool) -> str | None:
    """Return why the source cannot be written to the target, or None."""
    if why := why_without_values(target, "in the destination") or why_without_values(source, "in the weights"):
        return why
    if is_sharded(source) and not is_sharded(target):
        return "is a DTensor in the weights and none in the destination: send its full_tensor()"
    if target.shape != source.shape:
        return f"has shape {list(target.shape)} in the destination and {list(source.shape)} in the weights"
    if not maps and any(step == 0 and size > 1 for step, size in zip(target.stride(), target.shape, strict=True)):
        return "is an expanded tensor in the destination, whose elements share memory: clone() it"
    if target.is_conj() or target.is_neg():
        return "is a lazily conjugated or negated view in the destination: use its .resolve_conj().resolve_neg()"
    if strict and target.dtype is not source.dtype:
        dtypes = f"is {target.dtype} in the destination and {source.dtype} in the weights"
        return f"{dtypes}; strict_dtype=True, and patches, cast nothing"
    if not torch.can_cast(source.dtype, target.dtype):
        return f"is {target.dtype} in the destination, which {source.dtype} in the weights cannot be cast to"
    if target.numel() and not _can_copy(target.dtype, source.dtype, target.device.type, source.device.type):
        return f"is {target.dtype} on {target.device} in the destination, to which torch copies no {source.dtype}"
    return None


@functools.cache
def _can_copy(there: torch.dtype, here: torch.dtype, to: str = "cpu", of: str = "cpu") -> bool:
    """True if torch can copy one dtype to the other, which ``can_cast`` does not report."""
    target, source = torch.empty(1, dtype=there, device=to), torch.empty(1, dtype=here, device=of)
    try:
        torch._foreach_copy_(*as_integers([target], [source]))
    except NotImplementedError:
        return False
    return True


def _differ(target: torch.Tensor, one: torch.Tensor, other: torch.Tensor) -> bool:
    """True if two values would differ bitwise once written to one tensor, ignoring NaNs produced by a cast."""
    if are_tied(one, other):
        return False
    both = [local_part(part) for part in (one, other)]
    where = both[0].device if both[0].device == both[1].device else target.device
    if torch.equal(*(as_bytes(part.detach().to(where, target.dtype)) for part in both)):
        return False
    is_cast = any(part.dtype is not target.dtype for part in both)
    return not is_cast or not torch.equal(*(with_one_nan(part, target.dtype) for part in both))


def are_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """True if the tensors are bitwise equal, with the same shape, dtype and device."""
    forms = ((each.shape, each.dtype, each.device) for each in (one, other))
    return len(set(forms)) == 1 and torch.equal(as_bytes(one), as_bytes(other))


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's bytes in row-major order, in one dimension; a view if the tensor is contiguous."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return plain.as_strided((plain.numel(),), (1,)).view(torch.uint8)  # a single element may have any stride


def with_one_nan(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a cast tensor's bytes with all NaNs made equal, because the NaN that a cast produces depends on the
    processor."""
    tensor = tensor.detach().cpu().to(dtype)
    values = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    bits = as_bytes(values).view(-1, values.itemsize).clone()
    if values.is_floating_point():
        bits[values.to(torch.float32).isnan().flatten()] = as_bytes(torch.tensor(math.nan).to(values.dtype))
    return bits


def _still_has(owner: Any, keys: list[Any], items: list[Any]) -> bool:
    return all(map(operator.is_, map(owner.get, keys), items))


def _still_stacks(stack: Any, members: list[Any]) -> bool:
    return len(stack.tensordicts) == len(members) and all(map(operator.is_, stack.tensordicts, members))


def _mismatch(problems: Sequence[str], *sides: Collection[Path], hint: str = "") -> WeightMismatch:
    more = f" and {len(problems) - _NAMED} more" if len(problems) > _NAMED else ""
    keys = ". Destination keys: {}, weights keys: {}".format(*map(_listed, sides)) if sides else ""
    return WeightMismatch(f"Error updating destination: {'; '.join(problems[:_NAMED])}{more}{hint}{keys}")


def _listed(paths: Collection[Path]) -> str:
    names = sorted(map(name_of, paths))
    return f"{names[:_LISTED]}{f' and {len(names) - _LISTED} more' if len(names) > _LISTED else ''}"
