"""Writing weights into a model: all of them, or, if anything does not fit, none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import nn

from rlinf_async.errors import WeightMismatch
from rlinf_async.weights.model.copying import as_integers
from rlinf_async.weights.model.gather import is_sharded
from rlinf_async.weights.model.param_tree import (
    EXTRA_STATE,
    ParamTree,
    Path,
    is_tensordict,
    memory_of,
    name_of,
    path_of,
)

_NAMED = 5  # keys that an error names


class Update:
    """Weights that have been found to fit a destination, and are not written yet.

    Attributes:
        targets, sources: tensors of the destination, each once, and what they will hold.
    """

    def __init__(self) -> None:
        self.targets: list[torch.Tensor] = []
        self.sources: list[torch.Tensor] = []
        self._extra: list[tuple[Callable[[], Any], Callable[[Any], Any], Any]] = []

    def write(self) -> None:
        """Writes in place: parameters stay the same objects; dtypes are cast, and memory moves between devices.

        Done when it returns, in whatever thread: on a GPU it waits for all that was begun there, by whoever has made
        the weights and whoever reads what they are written to.

        Raises:
            Exception: what a module's ``set_extra_state`` raises; nothing was changed.
        """
        with self._extra_written(), in_turn({tensor.device for tensor in (*self.targets, *self.sources)}):
            self._write_tensors()

    def _write_tensors(self) -> None:
        with torch.inference_mode(any(target.is_inference() for target in self.targets)), torch.no_grad():
            pairs = [(target.data, source) for target, source in zip(self.targets, self.sources, strict=True)]
            plain = [pair for pair in pairs if not is_sharded(pair[0])]
            if plain:
                torch._foreach_copy_(*as_integers([target for target, _ in plain], [source for _, source in plain]))
            for target, source in pairs:
                if is_sharded(target):  # which torch does not take together with others
                    target.copy_(source)

    def _take_tensors(self, tree: ParamTree, places: Mapping[Path, Any]) -> Iterator[str]:
        """Notes where each goes; yields what does not fit."""
        chosen: dict[Any, tuple[Path, torch.Tensor, torch.Tensor]] = {}
        for path, source in sorted(tree.items(), key=lambda item: item[0]):
            place = places.get(path)
            if place is None:
                yield f"{name_of(path)!r} is not in the destination"
            elif isinstance(place, _Extra):
                self._extra.append((place.get, place.put, source))
            elif problem := _misfit(place, source):
                yield f"{name_of(path)!r} {problem}"
            else:
                memory = memory_of(place)
                before = chosen.get(memory)
                if before is not None and _differ(before[2], source):
                    yield f"{name_of(before[0])!r} and {name_of(path)!r} are tied there, and their values differ"
                chosen[memory] = path, place, source
        for memory, (_, target, source) in chosen.items():
            if memory != memory_of(source):
                self.targets.append(target)
                self.sources.append(source.detach())

    def _take_extra(self, tree: ParamTree, places: Mapping[Path, Any]) -> Iterator[str]:
        for path, value in tree.extra.items():
            place = places.get(path)
            if isinstance(place, _Extra):
                self._extra.append((place.get, place.put, value))
            elif value is not None:
                is_there = (
                    f"is a tensor there, and {type(value).__name__} here" if place is not None else "is not in it"
                )
                yield f"{name_of(path)!r} {is_there}"

    @contextmanager
    def _extra_written(self) -> Iterator[None]:
        # Before the tensors: what models make of it may fail, and it can be taken back, also if the tensors fail.
        written: list[tuple[Callable[[Any], Any], Any]] = []
        try:
            for get, put, value in self._extra:
                written.append((put, get()))
                put(value)
            yield
        except Exception:
            for put, before in reversed(written):
                with suppress(Exception):  # the one that has failed may fail again
                    put(before)
            raise


def plan_update(destination: Any, weights: Any) -> Update:
    """Compares weights with the model that they are for; writes nothing.

    Args:
        destination: a module (parameters, all buffers, extra state), a dict with nested or dotted keys, a TensorDict.
        weights: a dict with nested or dotted keys, a TensorDict or a ParamTree; some keys of the destination may be
            missing.  None is an update of nothing.

    Raises:
        WeightMismatch: (a KeyError) a key is unknown, has another shape, or a dtype that cannot be cast without losing
            its kind (floating point to integer, complex to real); or two values were given for one tied tensor.
        ValueError: one of them is of another type.
    """
    if weights is None:
        return Update()
    if not isinstance(weights, (Mapping, ParamTree)) and not is_tensordict(weights):
        raise ValueError(f"Unsupported weights type: {type(weights)}. Expected dict or TensorDictBase.")
    if not isinstance(destination, (nn.Module, Mapping, ParamTree)) and not is_tensordict(destination):
        raise ValueError(f"Unsupported destination type for TensorDict: {type(destination)}")
    try:
        tree = ParamTree.of(weights)
        places = dict(places_of(destination))
    except KeyError as error:
        raise WeightMismatch(f"Error updating destination: {error.args[0]}") from None
    update = Update()
    problems = [*update._take_tensors(tree, places), *update._take_extra(tree, places)]
    if problems:
        more = f" and {len(problems) - _NAMED} more" if len(problems) > _NAMED else ""
        raise WeightMismatch(
            f"Error updating destination: {'; '.join(problems[:_NAMED])}{more}. "
            f"Destination keys: {_listed(places)}, weights keys: {_listed(dict(tree.items()) | tree.extra)}"
        )
    return update


class _Extra:
    """A place for what is not a tensor."""

    def __init__(self, get: Callable[[], Any], put: Callable[[Any], Any]) -> None:
        self.get, self.put = get, put


def places_of(destination: Any, above: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every path with its tensor, or where else its value goes."""
    if isinstance(destination, ParamTree):
        yield from destination.items()
        return
    if isinstance(destination, nn.Module) and not is_tensordict(destination):
        yield from _places_in_module(destination, above)
        return
    if hasattr(destination, "tensordicts"):
        raise ValueError("a lazily stacked TensorDict has no memory to write to: use its .contiguous()")
    for key, value in destination.items():
        if not isinstance(key, str):
            raise KeyError(f"keys of weights are strings; the destination has {key!r}")
        path = (*above, *path_of(key))
        if isinstance(value, (Mapping, nn.Module)) or is_tensordict(value):
            yield from places_of(value, path)
        elif isinstance(value, torch.Tensor):
            yield path, value
        else:
            yield path, _place_of_key(destination, key)


def _place_of_key(holder: Any, key: str) -> _Extra:
    return _Extra(lambda: holder[key], lambda value: holder.__setitem__(key, value))


def _places_in_module(module: nn.Module, above: Path) -> Iterator[tuple[Path, Any]]:
    for prefix, part in module.named_modules(remove_duplicate=False):
        path = (*above, *path_of(prefix)) if prefix else above
        for tensors in (part._parameters, part._buffers):
            yield from (((*path, name), tensor) for name, tensor in tensors.items() if tensor is not None)
        if type(part).set_extra_state is not nn.Module.set_extra_state:
            yield (*path, EXTRA_STATE), _Extra(part.get_extra_state, part.set_extra_state)


def _misfit(target: torch.Tensor, source: torch.Tensor) -> str | None:
    """Why one cannot be written over the other, if so."""
    if target.shape != source.shape:
        return f"has shape {list(target.shape)} there and {list(source.shape)} here"
    if not torch.can_cast(source.dtype, target.dtype):
        return f"is {target.dtype} there, which {source.dtype} cannot be cast to"
    if hasattr(target, "to_local") is not hasattr(source, "to_local"):
        return "is a DTensor on one side only: gather it, or distribute the other"
    for tensor, where in ((target, "there"), (source, "here")):
        if tensor.is_meta:
            return f"has no memory {where}: it is on the meta device"
    if target.layout is not torch.strided or source.layout is not torch.strided:
        return f"is {target.layout} there and {source.layout} here; only dense ones can be written"
    if any(stride == 0 and size > 1 for stride, size in zip(target.stride(), target.shape, strict=True)):
        return "is an expanded tensor there, in which elements share memory"
    if target.is_conj() or target.is_neg():
        return "is a lazily conjugated or negated view there: use its .resolve_conj().resolve_neg()"
    if target.numel() and not _can_be_copied(target, source):
        return f"is {target.dtype} on {target.device} there, to which torch copies no {source.dtype}"
    return None


_copies: dict[Any, bool] = {}
"""Whether torch copies one dtype to another, by both and where they are; ``can_cast`` does not tell that."""


def _can_be_copied(target: torch.Tensor, source: torch.Tensor) -> bool:
    if target.is_quantized or source.is_quantized:
        return target.is_quantized or not source.is_quantized
    key = target.dtype, source.dtype, target.device.type, source.device.type
    if key not in _copies:
        one, other = (
            (tensor.to_local() if hasattr(tensor, "to_local") else tensor).detach().new_empty(1)
            for tensor in (target, source)
        )
        try:
            with torch.no_grad():
                torch._foreach_copy_(*as_integers([one], [other]))
        except NotImplementedError:
            _copies[key] = False
        else:
            _copies[key] = True
    return _copies[key]


def _differ(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two values for one memory are certainly different."""
    if memory_of(one) == memory_of(other) or one.dtype != other.dtype or one.device != other.device:
        return False
    return not torch.equal(as_bytes(one), as_bytes(other))


def are_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether they hold the same, bit by bit, in the same form and on the same device."""
    forms = ((each.shape, each.dtype, each.device) for each in (one, other))
    return len(set(forms)) == 1 and torch.equal(as_bytes(one), as_bytes(other))


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Its bytes in row-major order, one dimension; a view where it is contiguous."""
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def _listed(found: Mapping[Path, Any]) -> str:
    names = [name_of(path) for path in sorted(found)]
    return f"{names[:20]}{f' and {len(names) - 20} more' if len(names) > 20 else ''}"


@contextmanager
def in_turn(devices: Iterable[torch.device]) -> Iterator[None]:
    """What is done in here comes after all that was begun on those GPUs before, and is done when this is left."""
    gpus = [device for device in devices if device.type == "cuda"]
    for gpu in gpus:
        torch.cuda.synchronize(gpu)
    try:
        yield
    finally:
        for gpu in gpus:
            torch.cuda.current_stream(gpu).synchronize()
