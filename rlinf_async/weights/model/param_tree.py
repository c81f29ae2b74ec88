"""The tensors of a model by path, which is the common form of all sources of weights."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Literal, TypeAlias

import numpy
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from rlinf_async.errors import WeightMismatch

Path: TypeAlias = tuple[str, ...]
Select: TypeAlias = Literal["all", "trainable"] | Callable[[str, Any], bool]

EXTRA_STATE: Final = "_extra_state"  # last part of the key under which torch stores get_extra_state's result

_DENSE: Final = {"quantized": "dequantize()", "nested": "to_padded_tensor()"}
"""Maps each kind of non-dense tensor, other than sparse ones, to the call that returns a dense tensor."""


class ParamTree:
    """A model's tensors, sorted by path; each tied tensor is listed only once.

    Attributes:
        tensors: tensors with their own memory, sorted by path; the source's objects, not copies.
        aliases: maps a path to the path in ``tensors`` that has the same memory and view.
        extra: values other than tensors: modules' extra state, and other values in dicts.
    """

    __slots__ = ("aliases", "extra", "tensors")

    def __init__(
        self,
        tensors: Mapping[Path, torch.Tensor],
        aliases: Mapping[Path, Path] | None = None,
        extra: Mapping[Path, Any] | None = None,
    ) -> None:
        self.tensors: dict[Path, torch.Tensor] = {path: tensors[path] for path in sorted(tensors)}
        self.aliases: dict[Path, Path] = dict(sorted((aliases or {}).items()))
        self.extra: dict[Path, Any] = dict(sorted((extra or {}).items()))

    def __repr__(self) -> str:
        parts = [f"{len(self.tensors)} tensors"]
        parts += [f"{len(self.aliases)} tied"] if self.aliases else []
        parts += [f"{len(self.extra)} other"] if self.extra else []
        return f"<ParamTree of {', '.join(parts)}>"

    @classmethod
    def of(cls, source: Any, select: Select = "all", rename: Callable[[Mapping[Path, Any]], Any] = dict) -> ParamTree:
        """Return a source's weights without copying them.

        Args:
            source: a module (its parameters, persistent buffers and extra state, with ``state_dict`` hooks), a
                TensorDict, a dict with dotted or nested keys, or a ParamTree. In dicts, arrays and numbers count as
                tensors.
            select: ``"all"``; ``"trainable"``, which omits parameters that do not require a gradient; or a function of
                (dotted name, value).
            rename: assigns other paths to the selected values, unless the source is a ParamTree.

        Raises:
            ValueError: the source has an unsupported type, or contains a lazy layer without a shape or an array that
                torch rejects.
            WeightMismatch: (a KeyError) a key is not a string, two keys mean the same path, or one path is a prefix of
                another.
        """
        if isinstance(source, ParamTree):
            found = dict(source.items()) | source.extra
        else:
            found = {}
            for path, value in _walk(source):
                if path in found:
                    raise WeightMismatch(f"{name_of(path)!r} is there twice, once dotted and once nested")
                found[path] = value
            _refuse_forks(found)
        if select not in ("all", "trainable") and not callable(select):
            raise ValueError(f"select= is 'all', 'trainable' or a function of (name, value); got {select!r}")
        if select != "all":
            found = {path: value for path, value in found.items() if is_chosen(path, value, select)}
        if rename is not dict and not isinstance(source, ParamTree):
            found = rename(found)
            _refuse_forks(found)
        tensors: dict[Path, torch.Tensor] = {}
        aliases: dict[Path, Path] = {}
        extra: dict[Path, Any] = {}
        owners: dict[Any, Path] = {}
        for path in sorted(found):
            value = found[path]
            if path[-1] == EXTRA_STATE or not isinstance(value, torch.Tensor):
                extra[path] = value
                continue
            owner = owners.setdefault(memory_of(value), path)
            if owner == path:
                tensors[path] = value
            else:
                aliases[path] = owner
        return cls(tensors, aliases, extra)

    def __len__(self) -> int:
        """Return the number of tensors with their own memory."""
        return len(self.tensors)

    def __contains__(self, path: object) -> bool:
        return path in self.tensors or path in self.aliases

    def __getitem__(self, path: Path) -> torch.Tensor:
        return self.tensors[self.aliases.get(path, path)]

    def items(self) -> Iterator[tuple[Path, torch.Tensor]]:
        """Yield every path, including tied ones, with its tensor."""
        yield from self.tensors.items()
        for path, owner in self.aliases.items():
            yield path, self.tensors[owner]

    @property
    def nbytes(self) -> int:
        """Size in bytes of all dense tensors, counting tied ones once; receivers accept no other tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values() if tensor.layout is torch.strided)

    def to_state_dict(self) -> dict[str, Any]:
        """Return a sorted dict that maps each dotted name, including those of tied tensors, to its value."""
        return {name_of(path): value for path, value in self._everything()}

    def to_nested(self) -> dict[str, Any]:
        """Return the same values as nested dicts."""
        return _nested(self._everything())

    def to_tensordict(self) -> Any:
        """Return the same values as a TensorDict without batch dimensions, which shares the tensors.

        Raises:
            ImportError: tensordict is not installed.
        """
        from tensordict import NonTensorData, TensorDict

        extra = ((path, NonTensorData(value)) for path, value in self.extra.items())
        return TensorDict(_nested(sorted([*self.items(), *extra], key=operator.itemgetter(0))), batch_size=[])

    def _everything(self) -> list[tuple[Path, Any]]:
        return sorted([*self.items(), *self.extra.items()], key=operator.itemgetter(0))


def _nested(items: Iterable[tuple[Path, Any]]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for path, value in items:
        node = nested
        for part in path[:-1]:
            node = node.setdefault(part, {})
        node[path[-1]] = value
    return nested


def name_of(path: Path) -> str:
    """Return ``"layers.0.weight"`` for ``("layers", "0", "weight")``."""
    return ".".join(path)


def path_of(name: str) -> Path:
    """Return ``("layers", "0", "weight")`` for ``"layers.0.weight"``."""
    return tuple(name.split("."))


def key_path(key: Any, above: Path = ()) -> Path:
    """Return the path of a mapping's key, a string or a tuple of strings, below another path.

    Raises:
        WeightMismatch: (a KeyError) the key is of another type.
    """
    if isinstance(key, str):
        return (*above, *key.split("."))
    if not isinstance(key, tuple) or not key or not all(isinstance(part, str) for part in key):
        raise WeightMismatch(f"keys of weights are strings; got {key!r}{f' in {name_of(above)!r}' if above else ''}")
    return (*above, *path_of(".".join(key)))


def is_tensordict(value: Any) -> bool:
    """True for a TensorDict. Does not import the library, because no TensorDict exists before its import."""
    library = sys.modules.get("tensordict")
    return library is not None and isinstance(value, library.TensorDictBase)


def _walk(source: Any, above: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield all values in a source by path, each object once."""
    if isinstance(source, nn.Module):
        source = source.state_dict(keep_vars=True)
    elif not above and not isinstance(source, Mapping) and not is_tensordict(source):
        raise ValueError(
            f"Unsupported source type for weights: {type(source)}. Expected a module, a TensorDict or a dict of tensors"
        )
    for key, value in source.items():
        path = key_path(key, above)
        if path[-1] == EXTRA_STATE or is_non_tensor(value):
            yield path, _unwrapped(value)
        elif isinstance(value, (Mapping, nn.Module)) or is_tensordict(value):
            yield from _walk(value, path)
        else:
            yield path, _plain(value, path)


def _plain(value: Any, path: Path) -> Any:
    if isinstance(value, (bool, int, float, complex, numpy.number, numpy.bool_)):
        return torch.as_tensor(value)
    if isinstance(value, numpy.ndarray) and value.dtype.kind in "biufc":
        try:
            return torch.from_numpy(value)
        except (TypeError, ValueError) as error:
            # The byte order is foreign, strides are negative, or floats have 80 bits.
            raise ValueError(
                f"{name_of(path)!r} is an array of {value.dtype.str!r} that torch cannot take: {error} "
                "Make it numpy.ascontiguousarray(array, dtype=numpy.float32), or another dtype of torch's"
            ) from None
    if isinstance(value, torch.Tensor) and is_lazy(value):
        raise ValueError(f"{name_of(path)!r} {why_without_values(value)}")
    return _unwrapped(value)


def is_non_tensor(value: Any) -> bool:
    """True for a value that TensorDicts wrap as NonTensorData, or a stack of such values."""
    library = sys.modules.get("tensordict")
    return library is not None and bool(library.is_non_tensor(value))


def _unwrapped(value: Any) -> Any:
    """Return the value inside NonTensorData; for a lazy stack, nested lists of the values."""
    if not is_non_tensor(value):
        return value
    return value.tolist() if is_tensordict(value) else value.data


def _refuse_forks(found: Mapping[Path, Any]) -> None:
    before: Path | None = None
    for path in sorted(found):
        # In sorted order, all paths below a path directly follow the path.
        if before is not None and path[: len(before)] == before:
            raise WeightMismatch(f"{name_of(before)!r} is a value and cannot also have {name_of(path)!r} below it")
        before = path


def is_chosen(path: Path, value: Any, select: Select) -> bool:
    """True if ``select`` includes the value."""
    if callable(select):
        return bool(select(name_of(path), value))
    return select == "all" or not _is_frozen(value)


def _is_frozen(value: Any) -> bool:
    return isinstance(value, nn.Parameter) and not value.requires_grad


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor itself, or this rank's part of a DTensor."""
    part: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


def why_without_values(tensor: torch.Tensor, where: str = "") -> str:
    """Return why a tensor has no dense values to send or write, as text that follows its name; empty if it has some.

    Args:
        where: text for the side (``"in the weights"``) in comparisons; empty for a source of weights.
    """
    if is_lazy(tensor):
        if where:
            return f"is not initialised {where}: run the model once, which gives lazy layers their shapes"
        once = "run the model once before it is sent, which gives lazy layers theirs"
        return f"is not initialised and has no shape yet: {once}"
    if tensor.is_meta:
        if where:
            return f"is on the meta device {where} and has no memory: give it some, by to_empty() of its module"
        return "is on the meta device and has no values: give it some before it is synchronised"
    kind = "quantized" if tensor.is_quantized else "nested" if tensor.is_nested else str(tensor.layout)
    if kind == str(torch.strided):
        return ""
    if where:
        return f"is {kind} {where}, and only dense tensors can be written: make it dense"
    instead = _DENSE.get(kind, "to_dense()")
    return f"is {kind}, and only dense tensors travel: send its {instead} in its place, or leave it out by select="


def has_extra_state(module: nn.Module) -> bool:
    return type(module).get_extra_state is not nn.Module.get_extra_state


def are_tied(one: torch.Tensor, other: torch.Tensor) -> bool:
    """True if both tensors are the same view of the same memory, so that their values are always equal."""
    return one is other or memory_of(one) == memory_of(other)


def memory_of(tensor: torch.Tensor) -> Any:
    """Return a key that is equal only for tensors with the same view of the same memory."""
    local = local_part(tensor)
    if local.is_nested or not local.numel() or local.is_meta or local.layout is not torch.strided:
        return id(tensor)
    shape, steps = tuple(tensor.shape), local.stride()
    if 1 in shape:  # a dimension of size one may have any stride
        steps = tuple(0 if size == 1 else step for size, step in zip(local.shape, steps, strict=True))
    return local.device, local.data_ptr(), local.dtype, shape, steps, tensor.is_conj()
