"""Judgement of a patch's destination, before anything is written to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch

from rlinf_async.errors import WeightMismatch
from rlinf_async.weights.model.manifest import Manifest, dtype_name, dtype_of
from rlinf_async.weights.model.param_tree import Path, memory_of, name_of
from rlinf_async.weights.model.update import are_equal, places_of, plan_update

Leaves: TypeAlias = Mapping[Path, torch.Tensor]


def check_fit(manifest: Manifest, destination: Any) -> None:
    """
    Raises:
        WeightMismatch: what the manifest describes could not be written to the destination.
    """
    # Tensors that have the shapes and take no memory.
    zeros = {name: torch.zeros((), dtype=dtype_of(name)) for name in {leaf.transport_dtype for leaf in manifest.leaves}}
    plan_update(
        destination,
        {name_of(path): zeros[leaf.transport_dtype].expand(leaf.shape) for path, leaf in manifest.by_path.items()},
    )


def leaves_of(
    manifest: Manifest, destination: Any
) -> tuple[dict[Path, torch.Tensor], list[tuple[torch.Tensor, torch.Tensor]]]:
    """The tensors of a destination that the manifest names, each of the dtype in which it is sent.

    Returns:
        Each leaf's; and (target, leaf) for names that are tied to it at the sender and are tensors of their own here.

    Raises:
        WeightMismatch: one is missing, has become another, or could not be written.
    """
    check_fit(manifest, destination)
    there = dict(places_of(destination))
    leaves = {}
    for leaf in manifest.leaves:
        tensor = there[leaf.path]
        if not isinstance(tensor, torch.Tensor):
            raise WeightMismatch(f"Error updating destination: {name_of(leaf.path)!r} has become what is no tensor")
        if dtype_name(tensor.dtype) != leaf.transport_dtype:
            raise WeightMismatch(
                f"Error updating destination: {name_of(leaf.path)!r} has become {tensor.dtype}{list(tensor.shape)}; "
                f"the two sides agreed on {leaf.transport_dtype}{list(leaf.shape)}"
            )
        leaves[leaf.path] = tensor.detach()
    twins = [
        (there[path].data, leaves[owner])
        for path, owner in manifest.aliases.items()
        if isinstance(there[path], torch.Tensor) and memory_of(there[path]) != memory_of(leaves[owner])
    ]
    return leaves, twins


def check_ties(manifest: Manifest, destination: Any, leaves: Leaves, write: Callable[[Leaves], None]) -> None:
    """Looks at what would be written where the destination ties tensors that are several at the sender.

    Args:
        leaves: of the destination.
        write: writes to such leaves, according to what they hold.

    Raises:
        WeightMismatch: tensors that are tied there get values that differ; nothing was written to the destination.
    """
    there = dict(places_of(destination))
    names: dict[Any, dict[Path, Path]] = {}  # by memory: leaf → the name by which it is there
    for path in sorted(manifest.by_path):
        if isinstance(there[path], torch.Tensor):
            names.setdefault(memory_of(there[path]), {}).setdefault(manifest.aliases.get(path, path), path)
    tied = [found for found in names.values() if len(found) > 1]
    if not tied:
        return
    copies = {path: leaf.clone() for path, leaf in leaves.items()}
    write(copies)
    for found in tied:
        (first, name), *others = found.items()
        for other, name_of_other in others:
            if not are_equal(copies[first], copies[other]):
                raise WeightMismatch(
                    f"Error updating destination: {name_of(name)!r} and {name_of(name_of_other)!r} are tied there, and "
                    "their values differ: tie them at the sender too, or give each a tensor of its own here"
                )
