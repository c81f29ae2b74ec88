"""Weights given in part: those that ``keys=`` names, and the others, which a model has."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import torch

from rlinf_async.errors import WeightMismatch
from rlinf_async.weights.model.manifest import Manifest
from rlinf_async.weights.model.param_tree import ParamTree, Path, is_tensordict, memory_of, name_of, paths_named
from rlinf_async.weights.model.shards import is_sharded

TELL_THE_MODEL: Final = "tell init_on_sender() of the model, by source_model= or a context that has it"
"""What to do where only some of the weights come first."""


def chosen(weights: Any, keys: Collection[Any] | None) -> Any:
    """Weights in the form that they have; of them, what ``keys`` names.

    Raises:
        KeyError: a key names nothing.
    """
    if keys is None:
        return weights
    tree = ParamTree.of(weights)
    everything = dict(tree.items()) | tree.extra
    found = paths_named(keys, everything)
    part = ParamTree({path: tree[path] for path in found if path in tree}, None, {})
    part.extra.update({path: value for path, value in tree.extra.items() if path in found})
    return part.to_tensordict() if is_tensordict(weights) else part.to_state_dict()


def fitted(tree: ParamTree, manifest: Manifest) -> tuple[ParamTree, list[Path] | None]:
    """Weights in the form that the receivers know, where they have only some of the keys, or tied tensors twice.

    Returns:
        The weights, and the keys that they have; None for all.

    Raises:
        WeightMismatch: a key is not known; or tied tensors were given different values.
    """
    for path, _ in tree.items():
        if path not in manifest.by_path:
            raise WeightMismatch(
                f"the receivers were not told of {name_of(path)!r}, which is among the weights: the first version says "
                f"what there is. To begin with only some of the weights, {TELL_THE_MODEL}; or close "
                "both sides, and send all of them first"
            )
    tensors = _by_owner(tree, {path: leaf.path for path, leaf in manifest.by_path.items()})
    is_whole = len(tensors) == len(manifest.leaves)
    aliases = {path: owner for path, owner in manifest.aliases.items() if owner in tensors}
    return ParamTree(tensors, aliases, tree.extra), None if is_whole else list(tensors)


def _by_owner(tree: ParamTree, owners: Mapping[Path, Path]) -> dict[Path, torch.Tensor]:
    """Its tensors under the paths that tied ones are kept under.

    Raises:
        WeightMismatch: tied tensors were given different values.
    """
    tensors: dict[Path, torch.Tensor] = {}
    for path, tensor in tree.items():
        owner = owners.get(path, path)
        known = tensors.setdefault(owner, tensor)
        if known is not tensor and not torch.equal(known, tensor):
            raise WeightMismatch(f"{name_of(path)!r} is tied to {name_of(owner)!r}, and their values differ")
    return tensors


def completed(weights: Any, keys: Collection[Any] | None, model: Any, model_id: str, select: Any = "all") -> Any:
    """A first version, of which the receivers are told what comes from then on: all of the model.

    Args:
        model: the sender's own, or its weights; None if it has none.
        select: as of ``ParamTree.of``.

    Returns:
        The model's weights in the place of those that were not given; the weights as they are where nothing lacks, or
        where they are none of the model's, so that it does not say what there is.

    Raises:
        KeyError: a key names nothing.
        ValueError: only some were given, and there is no model to take the others from.
        WeightMismatch: the model does not have one of them, or of another shape or dtype; or tied ones have different
            values.
    """
    part = chosen(weights, keys)
    if model is None:
        return _all_of(part, weights, model_id)
    everything, mine, given = ParamTree.of(model), ParamTree.of(model, select), ParamTree.of(part, select)
    news = {path: tensor for path, tensor in given.items() if path in mine or path not in everything}
    known = {mine.aliases.get(path, path) for path in news if path in mine}
    unknown = [path for path in news if path not in mine]
    if unknown and not known:
        return _all_of(part, weights, model_id)
    if len(known) == len(mine):
        return part
    if unknown:
        raise WeightMismatch(
            f"{name_of(unknown[0])!r} is among the first weights of '{model_id}', and not in its model, which says "
            "what there is"
        )
    tree = _completed(_by_owner(ParamTree(news), mine.aliases), mine, model_id)
    tree.extra.update(given.extra)
    return tree.to_tensordict() if is_tensordict(weights) else tree.to_state_dict()


def _all_of(part: Any, weights: Any, model_id: str) -> Any:
    if part is not weights and len(ParamTree.of(part)) < len(ParamTree.of(weights)):
        raise ValueError(
            f"the first version of '{model_id}' is whole, and keys= names only some of the weights: leave it out this "
            f"time; or, for the others, {TELL_THE_MODEL}"
        )
    return part


def _completed(news: Mapping[Path, torch.Tensor], mine: ParamTree, model_id: str) -> ParamTree:
    """The model with these in the place of its own."""
    if any(map(is_sharded, mine.tensors.values())) and not any(map(is_sharded, news.values())):
        raise ValueError(
            f"the first version of '{model_id}' is whole, and its model is sharded: begin with a send of all of it, on "
            "every rank"
        )
    tensors, places = dict(mine.tensors), {memory_of(tensor): path for path, tensor in mine.tensors.items()}
    for path, tensor in news.items():
        own = tensors[path]
        if (tensor.shape, tensor.dtype) != (own.shape, own.dtype):
            raise WeightMismatch(
                f"{name_of(path)!r} is {tensor.dtype} of shape {tuple(tensor.shape)}; the model of '{model_id}', which "
                f"says what there is, has {own.dtype} of shape {tuple(own.shape)}"
            )
        shared = places.setdefault(memory_of(tensor), path) != path  # by chance, and no tie from then on
        tensors[path] = tensor.detach().clone() if shared else tensor
    return ParamTree(tensors, mine.aliases, mine.extra)
