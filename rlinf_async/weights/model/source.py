"""Sources of published versions: models, whose tensors are looked up quickly after the first version, and functions
that yield ``(name, tensor)``."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

import torch
from torch import nn

from rlinf_async._core import codec
from rlinf_async.errors import ConfigError, WeightMismatch
from rlinf_async.weights.model.copying import copy_tensors
from rlinf_async.weights.model.fit import are_equal
from rlinf_async.weights.model.gather import gather_into
from rlinf_async.weights.model.gather_calls import GatherCall
from rlinf_async.weights.model.manifest import Manifest, TransportDtype, dtype_of
from rlinf_async.weights.model.naming import UNCHANGED, Naming
from rlinf_async.weights.model.param_tree import (
    ParamTree,
    Path,
    Select,
    are_tied,
    is_chosen,
    name_of,
    path_of,
    why_without_values,
)
from rlinf_async.weights.model.shards import is_sharded

_dtype: Final = attrgetter("dtype")
_shape: Final = attrgetter("shape")
_is_meta: Final = attrgetter("is_meta")
_requires_grad: Final = attrgetter("requires_grad")


class WeightSource:
    """An extractor of tensors from published objects, all of which must have the same layout as the first.

    Args:
        tree: the first weights.

    Raises:
        ConfigError: trainable tensors are selected, but the weights do not show which tensors are trained.
    """

    def __init__(
        self, tree: ParamTree, select: Select, transport_dtype: TransportDtype, naming: Naming = UNCHANGED
    ) -> None:
        if select == "trainable" and tree.tensors and not any(map(_requires_grad, tree.tensors.values())):
            raise ConfigError(
                f"select='trainable' has nothing to go by: none of the {len(tree)} tensors ({_first(tree)!r} …) "
                "requires a gradient. What state_dict() and .data give is detached: send the module, or "
                "state_dict(keep_vars=True)"
            )
        self.manifest = Manifest.of(tree, transport_dtype)
        self._select = select
        self._naming = naming
        self._renames = bool(naming)
        self._transport_dtype = transport_dtype
        self._names = [name_of(leaf.path) for leaf in self.manifest.leaves]
        self._expected = [(leaf.shape, dtype_of(leaf.dtype)) for leaf in self.manifest.leaves]
        self._shapes = [shape for shape, _ in self._expected]
        self._dtypes = [dtype for _, dtype in self._expected]
        self._ties = [(name_of(path), name_of(owner)) for path, owner in self.manifest.aliases.items()]
        self._tied: dict[Path, list[Path]] = {}
        """Maps the path of each tied leaf to the leaf's other paths."""
        for path, owner in self.manifest.aliases.items():
            self._tied.setdefault(owner, []).append(path)
        self._has_extra = bool(tree.extra)
        self.is_sharded = any(map(is_sharded, tree.tensors.values()))
        """True if every rank has only part of the tensors."""

    def take(self, source: Any) -> tuple[list[torch.Tensor], bytes]:
        """Return the leaves' tensors, and the other values packed.

        Raises:
            WeightMismatch: they differ from the announced layout; the error names the first differences.
            SerializationError: a value other than a tensor cannot be pickled.
        """
        found = self._take_quickly(source)
        if found is not None:
            return found, b""
        tree = self._naming.tree_of(source, self._select)
        if len(tree) != len(self._names) or tree.aliases != self.manifest.aliases:
            # A dict may have copies of tensors that are tied in the model; equal copies count as one leaf.
            owners = {self.manifest.aliases.get(path, path) for path, _ in tree.items()}
            if isinstance(source, nn.Module) or owners != {leaf.path for leaf in self.manifest.leaves}:
                self.manifest.check(Manifest.of(tree, self._transport_dtype))
        tensors = []
        for index, leaf in enumerate(self.manifest.leaves):
            path = leaf.path
            tensor = tree[path] if path not in self._tied and path in tree else self._tied_tensor(tree, path)
            self._check(index, tensor)
            tensors.append(tensor)
        return tensors, pack_extra(tree)

    def _check(self, index: int, tensor: torch.Tensor) -> None:
        path, (shape, dtype) = self.manifest.leaves[index].path, self._expected[index]
        if tensor.is_meta:
            raise WeightMismatch(f"{name_of(path)!r} has gone to the meta device and has no values any more")
        if tensor.shape != shape or tensor.dtype is not dtype:
            raise WeightMismatch(
                f"{name_of(path)!r} has become {tensor.dtype} of shape {tuple(tensor.shape)}; the receivers were "
                f"told of {dtype} of shape {shape}: close both sides and connect again"
            )

    def stream(self, source: Any, targets: Sequence[torch.Tensor]) -> None:
        """Copy each yielded tensor to its place before requesting the next tensor.

        Raises:
            WeightMismatch: the tensors differ from the announced layout; the error names the first difference.
        """
        left = {leaf.path: index for index, leaf in enumerate(self.manifest.leaves)}
        for path, tensor in items_of(source, self._select, self._naming):
            index = left.pop(path, None)
            if index is None:
                why = "a second time" if path in self.manifest.indices else "of which the receivers were not told"
                raise WeightMismatch(f"the function of the weights has yielded {name_of(path)!r}, {why}")
            self._check(index, tensor)
            copy_tensors([targets[index]], [tensor])
        if left:
            raise WeightMismatch(
                f"the function of the weights has not yielded {name_of(next(iter(left)))!r}, of which the receivers "
                "were told"
            )

    def _tied_tensor(self, tree: ParamTree, owner: Path) -> torch.Tensor:
        """Return the single value of a tensor with several names, some of which may be missing.

        Raises:
            WeightMismatch: the names have different values, or are all missing.
        """
        there = [path for path in (owner, *self._tied.get(owner, ())) if path in tree]
        if not there:
            raise WeightMismatch(f"the weights lack {name_of(owner)!r}, of which the receivers were told")
        first, *others = (tree[path] for path in there)
        for path, other in zip(there[1:], others, strict=True):
            if not are_tied(other, first) and (is_sharded(other) or not are_equal(other, first)):
                raise WeightMismatch(
                    f"{name_of(path)!r} was tied to {name_of(there[0])!r} when the receivers were told of it, and has "
                    "a value of its own now: tie them again, or close both sides and connect again"
                )
        return first

    def _take_quickly(self, source: Any) -> list[torch.Tensor] | None:
        """Return the tensors of a module or a flat dict; None if anything has changed."""
        if self._has_extra or self._select != "all":
            return None
        if isinstance(source, nn.Module):
            source = source.state_dict(keep_vars=True)
        if not isinstance(source, dict) or len(source) != len(self._names) + len(self._ties):
            return None
        if self._renames:
            source = {name_of(self._naming.of(path_of(name))): tensor for name, tensor in source.items()}
        found: list[Any] = [source.get(name) for name in self._names]
        if not all(issubclass(kind, torch.Tensor) for kind in set(map(type, found))):
            return None
        if list(map(_dtype, found)) != self._dtypes or not all(map(operator.eq, map(_shape, found), self._shapes)):
            return None  # keeping the shapes would trigger a garbage collection, which takes longer than all of this
        if any(map(_is_meta, found)):
            return None
        for name, owner in self._ties:
            tied, tensor = source.get(name), source[owner]
            if not isinstance(tied, torch.Tensor) or not are_tied(tied, tensor):
                return None
        return found

    def gather(
        self,
        targets: Sequence[torch.Tensor],
        tensors: Sequence[torch.Tensor],
        call: GatherCall | None,
    ) -> None:
        """Combine sharded tensors in their places on the gathering rank; other ranks have no targets. Collective.

        Raises:
            TransferFailed: another rank is not making this call.
        """
        paths = [leaf.path for leaf in self.manifest.leaves]
        assert call is not None
        with torch.no_grad():
            tree = ParamTree(dict(zip(paths, tensors, strict=True)))
            gather_into(dict(zip(paths, targets, strict=False)), tree, call)


def _first(tree: ParamTree) -> str:
    return name_of(next(iter(tree.tensors)))


def pack_extra(tree: ParamTree) -> bytes:
    """Pack the values other than tensors.

    Raises:
        SerializationError: a value cannot be pickled; the text names it.
    """
    if not tree.extra:
        return b""
    return codec.encode(dict(tree.extra), describe="what the weights have beside tensors").to_bytes()


def unpack_extra(packed: bytes) -> Mapping[Any, Any]:
    """Return the values packed by ``pack_extra``."""
    found: Mapping[Any, Any] = codec.decode(packed) if packed else {}
    return found


def is_streamed(source: Any) -> bool:
    """True for a function that yields weights, as opposed to a callable model."""
    return callable(source) and not isinstance(source, nn.Module) and not hasattr(source, "items")


def items_of(source: Any, select: Select, naming: Naming) -> Iterator[tuple[Path, torch.Tensor]]:
    """Yield each selected tensor, unsharded, with its transport path.

    DTensors are gathered, so all ranks of their mesh must iterate, too.

    Raises:
        WeightMismatch: the function yields something other than a name and a tensor.
    """
    found = source()
    for item in found.items() if isinstance(found, Mapping) else found:
        name, tensor = item if isinstance(item, tuple) and len(item) == 2 else (None, item)
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise WeightMismatch(f"a function of weights yields (name, tensor), and has yielded {_described(item)}")
        path = path_of(name)
        if is_chosen(path, tensor, select):
            whole: Any = tensor.detach()
            yield naming.of(path), whole.full_tensor() if is_sharded(whole) else whole


def _described(item: Any) -> str:
    if isinstance(item, tuple):
        return f"({', '.join(repr(each) if isinstance(each, str) else type(each).__name__ for each in item)})"
    return f"{type(item).__name__}"


def layout_of(source: Any, select: Select, naming: Naming) -> ParamTree:
    """Return tensors with the same names, shapes and dtypes but without memory; the real tensors are dropped one by
    one."""
    found: dict[Path, torch.Tensor] = {}
    for path, tensor in items_of(source, select, naming):
        if path in found:
            raise WeightMismatch(f"a function of weights has yielded {name_of(path)!r} twice")
        if not why_without_values(tensor):  # the manifest rejects the others, and names them in the error
            tensor = torch.empty([1] * tensor.dim(), dtype=tensor.dtype).expand(tensor.shape)
        found[path] = tensor
    return ParamTree(found)


def exhaust(source: Any, times: int) -> None:
    """Iterate on a rank that sends nothing, because yielding a tensor may require all ranks."""
    for _ in range(times):
        for _ in items_of(source, "all", Naming()):
            pass
