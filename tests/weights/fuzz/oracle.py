"""Oracle of the fuzz: a pair's outcome by the rules, found by torch's operations, without the code under test.

====  =================================================================================================================
rule  meaning
====  =================================================================================================================
N     names are strings, each once, and none goes on where another ends
K     a tensor without a place is refused; a place without a tensor keeps what it has
S     shapes are equal
C     dtypes are cast where torch can
W     places can be written: they are not on the meta device, sparse, negated, or expanded (unless mapped); sources
      have values
T     places that are one memory get equal values
O     no place overlaps in any other way with one that is written
A     a source in the destination's memory is taken as it was before
V1    a value for a tensor is refused, None too
V2    a tensor for a value takes its place, as a copy
V3    a value for a value takes its place
V4    a value without a place is refused, but for None as extra state
====  =================================================================================================================
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy
import torch

from tests.weights.fuzz.sides import Entry, Place, Side, Stateful, Unseen, entries, read, seen


@dataclass(frozen=True)
class Refused:
    """An error.  Attributes: kind: name of its class; names: rule by name of every tensor or value that breaks one."""

    kind: str
    names: Mapping[str, str]


@dataclass(frozen=True)
class Written:
    """What the destination shows afterwards.  Attributes: cast: names whose values torch has computed."""

    values: Mapping[str, Any]
    cast: frozenset[str] = frozenset()


Outcome: TypeAlias = Refused | Written
Targets: TypeAlias = Sequence[tuple[Place, torch.Tensor]]


def judge(source: Side, destination: Side, *, maps: bool = False) -> Outcome:
    """Applies the source to the destination by the rules; on a refusal the destination is as it was."""
    try:
        given = _given(source.holder)
    except _Keys as error:
        return Refused("WeightMismatch", dict.fromkeys(error.args, "N"))
    try:
        places = {entry.name: entry for entry in entries(destination.holder)}
    except TypeError as error:
        unseen = {name: "W" for name, value in given.items() if isinstance(value, Unseen)}
        return Refused("WeightMismatch", {str(error): "N", **unseen})
    tensors = {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}
    targets = [
        (place, place.of(tensors[place.name]))
        for place in destination.places
        if place.name in tensors and tensors[place.name].shape == places[place.name].value.shape
    ]
    is_mapped = maps and all(_can_be_mapped(place, part) for place, part in targets)
    written = {id(place) for place, _ in targets}
    others = [place for place in destination.places if id(place) not in written]
    broken = dict(_of_memory(targets, others, is_mapped))
    for name, value in given.items():
        if rule := _of_one(name, value, places):
            broken[name] = rule
    if broken:
        return Refused("WeightMismatch", broken)
    values = [(places[name], value) for name, value in given.items() if name in places]
    values = [(entry, value) for entry, value in values if not isinstance(entry.value, torch.Tensor)]
    if refused := _put_values(values):
        return refused
    destination.places += [Place(entry.name, (), value) for entry, value in values if isinstance(value, torch.Tensor)]
    _write(targets)
    cast = {name for name, tensor in tensors.items() if getattr(places[name].value, "dtype", None) is not tensor.dtype}
    of_cast = [addresses(place.tensor) for place, _ in targets if place.name in cast]
    kept = [place for place in destination.places if not _has_no_values(place.tensor)]
    cast |= {place.name for place in kept if of_cast and addresses(place.tensor) in of_cast}
    # Negated views are computed when they are read, like casts.
    cast |= {entry.name for entry in entries(source.holder) if getattr(entry.value, "is_neg", bool)()}
    return Written(read(destination.holder), frozenset(cast))


class _Keys(Exception):
    """Names that are no names."""


def _given(holder: Any) -> dict[str, Any]:
    try:
        found = list(entries(holder))
    except TypeError as error:
        raise _Keys(str(error)) from None
    names = [entry.name for entry in found]
    wrong = [name for name in names if names.count(name) > 1]
    wrong += [name for name in names if any(other.startswith(f"{name}.") for other in names)]
    if wrong:
        raise _Keys(*wrong)
    return {entry.name: seen(_as_tensor(entry)) for entry in found}


def _as_tensor(entry: Entry) -> Any:
    is_number = isinstance(entry.value, (bool, int, float, numpy.ndarray))
    return torch.as_tensor(entry.value) if is_number and entry.key != "_extra_state" else entry.value


def _of_one(name: str, value: Any, places: Mapping[str, Entry]) -> str:
    """The rule that a tensor or value breaks by itself."""
    there = places[name].value if name in places else None
    if isinstance(value, Unseen):
        return "W"
    if not isinstance(value, torch.Tensor):
        if isinstance(there, torch.Tensor):
            return "V1"
        return "" if name in places or (value is None and name.endswith("_extra_state")) else "V4"
    if name not in places:
        return "K"
    if not isinstance(there, torch.Tensor):
        return ""
    if there.shape != value.shape:
        return "S"
    return "" if torch.can_cast(value.dtype, there.dtype) else "C"


def _can_be_mapped(place: Place, part: torch.Tensor) -> bool:
    is_of_first = all(dim == 0 for dim, _ in place.part)
    return is_of_first and place.tensor.dtype is part.dtype and not place.tensor.is_inference()


def _of_memory(targets: Targets, others: Sequence[Place], is_mapped: bool) -> Iterator[tuple[str, str]]:
    """Places that cannot be written, and pairs of places in one memory that get different values or differ in form."""
    there: list[tuple[Place, torch.Tensor | None, list[int]]] = []
    for place, part in targets:
        if _has_no_values(place.tensor) or place.tensor.is_neg() or (is_expanded(place.tensor) and not is_mapped):
            yield place.name, "W"
        else:
            there.append((place, part, addresses(place.tensor)))
    there += [(place, None, addresses(place.tensor)) for place in others if not _has_no_values(place.tensor)]
    for (one, part, where), (other, its_part, elsewhere) in itertools.combinations(there, 2):
        if part is None or not set(where) & set(elsewhere):
            continue
        form, its_form = ((tensor.shape, tensor.dtype) for tensor in (one.tensor, other.tensor))
        rule = "" if where == elsewhere and form == its_form else "O"
        if not rule and its_part is not None:
            is_cast = part.dtype is not form[1] or its_part.dtype is not form[1]
            rule = "" if same(part.to(form[1]), its_part.to(form[1]), is_cast=is_cast) else "T"
        yield from ((name, rule) for name in (one.name, other.name) if rule)


def _has_no_values(tensor: torch.Tensor) -> bool:
    return tensor.is_meta or tensor.is_sparse


def is_expanded(tensor: torch.Tensor) -> bool:
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.numel() > 0 and any(step == 0 and size > 1 for size, step in steps)


def addresses(tensor: torch.Tensor) -> list[int]:
    """Of its bytes, element by element in the order of its indices."""
    width, places = tensor.element_size(), [tensor.data_ptr()]
    for size, step in zip(tensor.shape, tensor.stride(), strict=True):
        places = [place + index * step * width for place in places for index in range(size)]
    return [place + byte for place in places for byte in range(width)]


def _put_values(values: Sequence[tuple[Entry, Any]]) -> Refused | None:
    bad = [entry.name for entry, value in values if isinstance(entry.owner, Stateful) and value == "bad"]
    if bad:
        return Refused("ValueError", dict.fromkeys(bad, "V3"))
    for entry, value in values:
        if isinstance(entry.owner, Stateful):
            entry.owner.state = value
        else:
            entry.owner[entry.key] = value
    return None


def _write(targets: Targets) -> None:
    for place, part in targets:
        if is_expanded(place.tensor):
            place.tensor.data = part.clone()
            continue
        with torch.inference_mode(place.tensor.is_inference()), torch.no_grad():
            place.tensor.data.copy_(part)


# -- comparing --------------------------------------------------------------------------------------------------------


def same(one: Any, other: Any, *, is_cast: bool = False) -> bool:
    """Whether two values are equal, tensors bit for bit; NaNs count as one where torch has made them by a cast."""
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return type(one) is type(other) and one == other
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if is_cast and one.is_floating_point():
        one, other = (torch.where(tensor.isnan(), tensor.new_tensor(torch.nan), tensor) for tensor in (one, other))
    # A copy: a tensor of one element counts as contiguous, whatever its strides.
    both = (tensor.clone(memory_format=torch.contiguous_format) for tensor in (one, other))
    return torch.equal(*(tensor.view(-1).view(torch.uint8) for tensor in both))


def differences(expected: Mapping[str, Any], got: Mapping[str, Any], cast: frozenset[str] = frozenset()) -> list[str]:
    """Names whose values are not equal."""
    return [
        f"{name!r} is {got.get(name, 'not there')}, and should be {expected.get(name, 'not there')}"
        for name in sorted({*expected, *got})
        if name not in expected or name not in got or not same(expected[name], got[name], is_cast=name in cast)
    ]
