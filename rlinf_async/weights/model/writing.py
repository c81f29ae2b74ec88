"""Functions that copy or map weights to a destination: all of them or, if one does not fit, none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import increment_version

from rlinf_async.errors import WeightMismatch
from rlinf_async.weights.model.copying import Copy, as_integers, copy_tensors
from rlinf_async.weights.model.fit import Fit
from rlinf_async.weights.model.overlap import meeting_in_memory
from rlinf_async.weights.model.param_tree import ParamTree, Path, are_tied, is_tensordict, local_part
from rlinf_async.weights.model.places import ValuePlace
from rlinf_async.weights.model.shards import is_sharded


def copy_in_turn(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copy after all earlier work on the tensors' GPUs; complete on return, in any thread."""
    gpus = {tensor.device for tensor in (*targets, *sources) if tensor.is_cuda}
    is_inference = any(map(torch.Tensor.is_inference, targets))
    sharded = [pair for pair in zip(targets, sources, strict=True) if is_sharded(pair[0])]
    if not gpus and not is_inference and not sharded:
        copy_tensors(targets, sources)
        return
    plain = [(to.data, of) for to, of in zip(targets, sources, strict=True) if not is_sharded(to)]
    with in_turn(gpus), torch.inference_mode(is_inference), torch.no_grad():
        if plain:
            torch._foreach_copy_(*as_integers(*map(list, zip(*plain, strict=True))))
        for target, source in sharded:  # torch does not accept a mix of DTensors and other tensors
            target.copy_(source)


def stand_in(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Remap tensors to the sources' memory."""
    for target, source in zip(targets, sources, strict=True):
        target.data = source
    # Assigning .data does not increment the version, so a backward pass would use these values instead of those of its
    # forward pass.
    # tests/weights/contract/kept.py::a_backward_pass_over_other_weights_is_refused
    increment_version(targets)


@dataclass
class Update:
    """Weights that fit a destination and have not been written yet.

    Attributes:
        targets, sources: tensors of the destination, each once, and their new values.
        values: places of values other than tensors, with their new values.
    """

    targets: list[torch.Tensor]
    sources: list[torch.Tensor]
    values: list[tuple[ValuePlace, Any]]

    @classmethod
    def of(cls, fit: Fit, leaves: Sequence[torch.Tensor], extra: Mapping[Path, Any]) -> Update:
        """Return the update for a checked version."""
        return cls(fit.targets, fit.sources(leaves), fit.replacements(leaves, extra))

    def write(self, place: Copy = copy_in_turn) -> None:
        """Write in place: parameters remain the same objects.

        Args:
            place: function that copies or maps the sources to the targets.

        Raises:
            Exception: raised by ``set_extra_state`` or ``place``; the old values are restored.
        """
        # Write the other values first, because a model may reject them, and they can be restored if the tensors fail
        # later.
        before: list[tuple[ValuePlace, Any]] = []
        try:
            for value, item in self.values:
                before.append((value, value.get()))
                value.put(item)
            place(self.targets, self.sources)
        except BaseException:
            for value, item in reversed(before):
                with suppress(Exception):  # the value that failed may fail again
                    value.put(item)
            raise


def plan_update(destination: Any, weights: Any, *, strict_dtype: bool = False) -> Update:
    """Compare weights with their model; write nothing.

    Args:
        destination: a module (parameters, all buffers, extra state), a dict with nested or dotted keys, or a
            TensorDict.
        weights: a dict with nested or dotted keys, a TensorDict or a ParamTree, which may lack some of the
            destination's keys. None is an empty update.
        strict_dtype: refuse other dtypes instead of casting them.

    Raises:
        WeightMismatch: (a KeyError) a key is unknown; a tensor has another shape, or a dtype of another kind (floating
            point for integer, complex for real); or a tied tensor has two values.
        ValueError: the destination or the weights have an unsupported type.
    """
    if weights is None:
        return Update([], [], [])
    fit, tree = _fitted(destination, weights, strict_dtype=strict_dtype)
    leaves = list(tree.tensors.values())
    update = Update.of(fit, leaves, tree.extra)
    pairs = zip(update.targets, update.sources, strict=True)
    # Tensors that already belong to the destination need no writing.
    others = [
        (to, of) for to, of in pairs if local_part(to).data_ptr() != local_part(of).data_ptr() or not are_tied(to, of)
    ]
    update.targets, update.sources = [target for target, _ in others], [source for _, source in others]
    _clone_aliases(update)
    return update


def adopt(destination: Any, weights: Any, *, strict_dtype: bool = False) -> str:
    """Remap a model's tensors to the memory of weights that no other object uses.

    Returns:
        The reason why the weights were copied instead; empty if they were mapped.

    Raises:
        WeightMismatch: the weights do not fit; the model is unchanged.
    """
    fit, tree = _fitted(destination, weights, maps=True, strict_dtype=strict_dtype)
    update = Update.of(fit, list(tree.tensors.values()), tree.extra)
    why = fit.why_copied or _why_elsewhere(update)
    update.write(copy_in_turn if why else stand_in)
    return why


def _why_elsewhere(update: Update) -> str:
    devices = [{tensor.device for tensor in tensors} for tensors in (update.targets, update.sources)]
    return "" if devices[0] == devices[1] else "the weights have arrived on another device"


def _fitted(destination: Any, weights: Any, **options: Any) -> tuple[Fit, ParamTree]:
    if not isinstance(weights, (Mapping, ParamTree)) and not is_tensordict(weights):
        raise ValueError(f"Unsupported weights type: {type(weights)}. Expected dict or TensorDictBase.")
    if not isinstance(destination, (nn.Module, Mapping)) and not is_tensordict(destination):
        raise ValueError(f"Unsupported destination type for TensorDict: {type(destination)}")
    try:
        tree = ParamTree.of(weights)
    except KeyError as error:
        raise WeightMismatch(f"Error updating destination: {error.args[0]}") from None
    fit = Fit(destination, tree, **options)
    fit.check(list(tree.tensors.values()), tree.extra)
    return fit, tree


def _clone_aliases(update: Update) -> None:
    """Clone sources that overlap a target, because a destination may receive its own tensors in another order."""
    count = len(update.targets)
    for met in meeting_in_memory([*update.targets, *update.sources]):
        if min(met) < count:
            for number in met:
                if number >= count:
                    update.sources[number - count] = update.sources[number - count].detach().clone()


@contextmanager
def in_turn(devices: Iterable[torch.device]) -> Iterator[None]:
    """Context manager: runs the block's work after all earlier work on those GPUs, and waits for it on exit."""
    gpus = [device for device in devices if device.type == "cuda"]
    for gpu in gpus:
        torch.cuda.synchronize(gpu)
    try:
        yield
    finally:
        for gpu in gpus:
            torch.cuda.current_stream(gpu).synchronize()
