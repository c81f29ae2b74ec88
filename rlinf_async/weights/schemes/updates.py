"""What one send sends, in the forms that it goes through on its way."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from rlinf_async.errors import WeightMismatch
from rlinf_async.weights.model.gather import is_sharded
from rlinf_async.weights.model.gather_calls import Call
from rlinf_async.weights.model.manifest import Manifest
from rlinf_async.weights.model.param_tree import ParamTree, Path, is_tensordict, memory_of, name_of, path_of

TELL_THE_MODEL: Final = "tell init_on_sender() of the model, by source_model= or a context that has it"
"""What to do where only some of the weights come first."""


@dataclass(frozen=True)
class Update:
    """What is sent.

    Attributes:
        version: of the weights; 0 until it is known which comes next.
        keys: which of the weights; None: all.
        timeout: seconds that the receivers have; None: as long as it takes.
        call: of the sender, by which the ranks of sharded weights know that they are in the same one.
    """

    model_id: str
    weights: Any
    version: int
    keys: Any = None
    timeout: float | None = None
    call: Call | None = None


def chosen(update: Update) -> Any:
    """The weights of an update, in the form that they have; of them, what ``keys`` names.

    Raises:
        KeyError: a key names nothing.
    """
    if update.keys is None:
        return update.weights
    tree = ParamTree.of(update.weights)
    everything = dict(tree.items()) | tree.extra
    found: set[Path] = set()
    for key in update.keys:
        wanted = path_of(key) if isinstance(key, str) else tuple(key)
        below = {path for path in everything if path[: len(wanted)] == wanted}
        if not below:
            raise KeyError(f"keys= names {name_of(wanted)!r}, which the weights do not have")
        found |= below
    part = ParamTree({path: tree[path] for path in found if path in tree}, None, {})
    part.extra.update({path: value for path, value in tree.extra.items() if path in found})
    return part.to_tensordict() if is_tensordict(update.weights) else part.to_state_dict()


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


def whole(update: Update, model: Any, select: Any = "all") -> Update:
    """A first version, of which the receivers are told what comes from then on: all of the model.

    Args:
        model: the sender's own, or its weights; None if it has none.
        select: as of ``ParamTree.of``.

    Returns:
        The update with the model's weights in the place of those that were not given; as it is where nothing lacks, or
        where the weights are none of the model's, so that it does not say what there is.

    Raises:
        KeyError: a key names nothing.
        ValueError: only some were given, and there is no model to take the others from.
        WeightMismatch: the model does not have one of them, or of another shape or dtype; or tied ones have different
            values.
    """
    if model is None:
        return update if update.keys is None else _without_model(update)
    everything, mine = ParamTree.of(model), ParamTree.of(model, select)
    given = ParamTree.of(chosen(update), select)
    news = {path: tensor for path, tensor in given.items() if path in mine or path not in everything}
    known = {mine.aliases.get(path, path) for path in news if path in mine}
    unknown = [path for path in news if path not in mine]
    if len(known) == len(mine) or (unknown and not known):
        return update
    if unknown:
        raise WeightMismatch(
            f"{name_of(unknown[0])!r} is among the first weights of '{update.model_id}', and not in its model, which "
            "says what there is"
        )
    tree = _completed(_by_owner(ParamTree(news), mine.aliases), mine, update.model_id)
    tree.extra.update(given.extra)
    weights = tree.to_tensordict() if is_tensordict(update.weights) else tree.to_state_dict()
    return dataclasses.replace(update, weights=weights, keys=None)


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


def _without_model(update: Update) -> Update:
    part = chosen(update)
    if len(ParamTree.of(part)) < len(ParamTree.of(update.weights)):
        raise ValueError(
            f"the first version of '{update.model_id}' is whole, and keys= names only some of the weights: leave it "
            f"out this time; or, for the others, {TELL_THE_MODEL}"
        )
    return dataclasses.replace(update, weights=part, keys=None)
