"""Weights that a function yields as ``(name, tensor)``, one after the other and anew for each version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from rlinf_async.errors import WeightMismatch
from rlinf_async.weights.model.manifest import not_dense
from rlinf_async.weights.model.naming import Naming
from rlinf_async.weights.model.param_tree import ParamTree, Path, Select, is_chosen, name_of, path_of
from rlinf_async.weights.model.shards import is_sharded


def is_streamed(source: Any) -> bool:
    """True if it is a function, and no model that can be called."""
    return callable(source) and not isinstance(source, nn.Module) and not hasattr(source, "items")


def items_of(source: Any, select: Select, naming: Naming) -> Iterator[tuple[Path, torch.Tensor]]:
    """Yield each selected tensor, whole, by the path under which it travels.

    DTensors are gathered, on all ranks of their mesh, which therefore have to iterate as well.

    Raises:
        WeightMismatch: the function yields something else than a name and a tensor.
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
    """Return tensors of the same names, shapes and dtypes that take no memory; the real ones are dropped one by one."""
    found: dict[Path, torch.Tensor] = {}
    for path, tensor in items_of(source, select, naming):
        if path in found:
            raise WeightMismatch(f"a function of weights has yielded {name_of(path)!r} twice")
        is_odd = bool(not_dense(tensor)) or tensor.is_meta  # the manifest refuses it by name
        found[path] = tensor if is_odd else torch.empty([1] * tensor.dim(), dtype=tensor.dtype).expand(tensor.shape)
    return ParamTree(found)


def exhaust(source: Any, times: int) -> None:
    """Iterate on a rank that sends nothing: to yield a tensor may take all ranks."""
    for _ in range(times):
        for _ in items_of(source, "all", Naming()):
            pass
