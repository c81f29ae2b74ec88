"""What a receiver's weights go to: the tensors of a module or of nested dicts, found once and written often."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Mapping, Sequence
from itertools import starmap
from typing import Any, Final, Protocol

import torch
from torch import nn

from rlinf_async.errors import WeightMismatch
from rlinf_async.weights.memory.cuda import CUDA
from rlinf_async.weights.memory.gpus import Gpus
from rlinf_async.weights.model.copying import copy_tensors
from rlinf_async.weights.model.manifest import Manifest
from rlinf_async.weights.model.param_tree import ParamTree, Path, memory_of, name_of
from rlinf_async.weights.model.source import put_extras
from rlinf_async.weights.model.update import are_equal
from rlinf_async.weights.model.writable import why_unwritable

logger = logging.getLogger(__name__)

Views = Mapping[Path, torch.Tensor]

_FORM: Final = (operator.attrgetter("dtype"), operator.attrgetter("device"), operator.attrgetter("shape"))


class Destination(Protocol):
    """Where weights are applied."""

    @property
    def places(self) -> set[torch.device]:
        """The GPUs that some of it is on, once it is checked."""

    @property
    def device(self) -> torch.device | None:
        """The GPU that all of it is on."""

    @property
    def is_copied(self) -> bool:
        """The last version was copied, whether it was to be mapped or not."""

    @property
    def is_whole(self) -> bool:
        """No write has broken off half way since one has ended."""

    def has_moved(self) -> bool:
        """Whether it is another object by now than the one that was checked; takes microseconds.

        Raises:
            Exception: there is none.
        """

    def check(self, manifest: Manifest) -> None:
        """
        Raises:
            WeightMismatch: they will not fit; nothing was written.
        """

    def compare(self, views: Views) -> None:
        """Before a version is written, while others still read: whether it fits what the destination is by now.

        Raises:
            WeightMismatch: it does not; nothing was written.
        """

    def write(self, views: Views, extra: Mapping[Path, Any]) -> None:
        """Applies a version; nobody reads meanwhile.  The views are only lent, unless it maps.

        Args:
            views: of all leaves, in the order of the manifest.
            extra: what there is beside tensors.

        Raises:
            Exception: what a function of the user's raises, or ``set_extra_state``, after which nothing is written.
        """

    def detach(self) -> None:
        """The memory of the last version is going away."""

    def forget(self) -> None:
        """Nothing is written any more: it keeps nobody's tensors alive."""


class Function:
    """Calls the user's own function, if there is one, with ``{path: tensor}``, which it must not keep."""

    def __init__(self, function: Callable[[Views], Any] | None) -> None:
        self._function = function
        self.places: set[torch.device] = set()
        self.device: torch.device | None = None
        self.is_copied = False
        self.is_whole = True

    def has_moved(self) -> bool:
        return False

    def check(self, manifest: Manifest) -> None:
        pass

    def compare(self, views: Views) -> None:
        pass

    def write(self, views: Views, extra: Mapping[Path, Any]) -> None:
        if self._function is not None:
            self.is_whole = False
            self._function(views)
            self.is_whole = True

    def detach(self) -> None:
        pass

    def forget(self) -> None:
        self._function = None


class Tensors:
    """The tensors of a module, of nested dicts, or of a TensorDict.

    Args:
        maps: they come to stand in the sender's memory, instead of being overwritten.
        also_on_gpu: that memory may be a GPU's; where it is not, tensors of a GPU are overwritten all the same.
    """

    def __init__(self, holder: Any, *, maps: bool, gpus: Gpus = CUDA, also_on_gpu: bool = False) -> None:
        self._holder = holder
        self._maps = maps
        self._gpus = gpus
        self._also_on_gpu = also_on_gpu
        self._is_told = False
        self.places: set[torch.device] = set()
        self.device: torch.device | None = None
        self.is_copied = True
        self.is_whole = True
        self._manifest: Manifest | None = None
        self._places: list[tuple[Any, list[str], list[torch.Tensor]]] = []
        """Who has which tensors, by what names."""
        self._targets: list[torch.Tensor] = []
        self._sources: list[int] = []
        """Of each target, which leaf it gets."""
        self._forms: list[list[Any]] = []
        """Dtypes, devices and shapes of the targets, which somebody may change in place."""
        self._tied: list[tuple[tuple[Path, Path], tuple[Path, Path]]] = []
        """Of two names that are one tensor here and two at the sender: the name, and the leaf that it gets."""

    def has_moved(self) -> bool:
        return False

    def check(self, manifest: Manifest) -> None:
        self._manifest = manifest
        found = dict(_places(self._holder))
        wanted: dict[Path, Path] = {leaf.path: leaf.path for leaf in manifest.leaves}
        wanted.update(manifest.aliases)
        leaves = {leaf.path: leaf for leaf in manifest.leaves}
        those = [found[path][2] for path in wanted if path in found]
        self.places, self.device = self._gpus.places(those), self._gpus.only_place(those)
        places: dict[int, tuple[Any, list[str], list[torch.Tensor]]] = {}
        targets = {}
        owners: dict[Any, tuple[Path, Path]] = {}
        tied = []
        for path, source in wanted.items():
            if path not in found:
                raise WeightMismatch(f"the sender has {name_of(path)!r}, and the receiver's weights do not")
            owner, name, tensor = found[path]
            self._check(path, tensor, leaves[source])
            _, names, tensors = places.setdefault(id(owner), (owner, [], []))
            names.append(name)
            tensors.append(tensor)
            targets[id(tensor)] = (tensor, source)  # those that are tied here too are written once
            first = owners.setdefault(id(tensor) if self._maps else memory_of(tensor), (path, source))
            if first[1] != source:
                tied.append((first, (path, source)))
        self._tied = tied
        self._places = list(places.values())
        self._targets = [tensor for tensor, _ in targets.values()]
        indices = {path: index for index, path in enumerate(leaves)}
        self._sources = [indices[source] for _, source in targets.values()]
        self._forms = _forms(self._targets)

    def _check(self, path: Path, tensor: torch.Tensor, leaf: Any) -> None:
        if problem := why_unwritable(tensor, replaced=self._maps):
            raise WeightMismatch(f"{name_of(path)!r} {problem}")
        if tuple(tensor.shape) != tuple(leaf.shape):
            raise WeightMismatch(
                f"{name_of(path)!r} has shape {tuple(leaf.shape)} at the sender and {tuple(tensor.shape)} here"
            )
        dtype = str(tensor.dtype).removeprefix("torch.")
        if self._maps and dtype != leaf.transport_dtype:
            raise WeightMismatch(
                f"{name_of(path)!r} travels as {leaf.transport_dtype} and is {dtype} here, so it cannot be mapped: use "
                'apply="copy", or that transport_dtype'
            )
        if dtype not in (leaf.dtype, leaf.transport_dtype):
            raise WeightMismatch(
                f"{name_of(path)!r} is {leaf.dtype} at the sender, travels as {leaf.transport_dtype}, and is {dtype} "
                "here"
            )
        may_be_there = self._also_on_gpu and self.device is not None
        if self._maps and tensor.device.type != "cpu" and not may_be_there:
            raise WeightMismatch(f'{name_of(path)!r} is on {tensor.device}, which cannot be mapped: use apply="copy"')

    def compare(self, views: Views) -> None:
        is_as_it_was = all(starmap(_are_still_there, self._places)) and _are_of(self._forms, self._targets)
        if self._manifest is not None and not is_as_it_was:
            self.check(self._manifest)
        for (one, leaf), (other, other_leaf) in self._tied:
            if not are_equal(views[leaf], views[other_leaf]):
                raise WeightMismatch(
                    f"{name_of(one)!r} and {name_of(other)!r} are tied here and not at the sender, and their values "
                    "differ: tie them there, or give each memory of its own here"
                )

    def write(self, views: Views, extra: Mapping[Path, Any]) -> None:
        if self._manifest is not None and not all(starmap(_are_still_there, self._places)):
            self.compare(views)  # somebody has replaced some of them just now
        put_extras(self._holder, extra)
        self.is_whole = False
        self._write_tensors(views)
        self.is_whole = True

    def _write_tensors(self, views: Views) -> None:
        leaves = list(views.values())
        sources = [leaves[index] for index in self._sources]
        if self._maps:
            self._map(sources)
        elif self.places:
            self._gpus.copy(self._targets, sources)  # after all that readers have begun
        else:
            copy_tensors(self._targets, sources)

    def _map(self, sources: Sequence[torch.Tensor]) -> None:
        if self._gpus.only_place(sources) != self.device:
            if not self._is_told:
                self._is_told = True
                where = self.device or "the CPU"
                logger.warning("weights are copied to %s and not mapped: the sender has them elsewhere", where)
            if not self.is_copied:
                self._let_go(torch.empty_like)
            self._gpus.copy(self._targets, sources)
            return
        if self.device is not None:
            self._gpus.settle(self.device)  # what readers have begun looks at the memory before
        for target, source in zip(self._targets, sources, strict=True):
            target.data = source
        self.is_copied = False

    def _let_go(self, room: Callable[[torch.Tensor], torch.Tensor]) -> None:
        for target in self._targets:
            target.data = room(target.data)
        self.is_copied = True

    def detach(self) -> None:
        """Gives mapped tensors memory of their own, with what they show."""
        if not self.is_copied:
            self._let_go(torch.clone)
            if self.device is not None:
                self._gpus.settle(self.device)

    def forget(self) -> None:
        self._holder = None
        self._places, self._targets = [], []


def destination_of(wanted: Any, *, maps: bool, gpus: Gpus) -> Destination:
    """What a user has named: tensors, a function, or None."""
    is_function = callable(wanted) and not isinstance(wanted, nn.Module) and not hasattr(wanted, "items")
    return (
        Function(wanted) if wanted is None or is_function else Tensors(wanted, maps=maps, gpus=gpus, also_on_gpu=True)
    )


def take_over(model: Any, weights: Any) -> None:
    """Has the tensors of a model stand in the memory of weights that nobody else has; nothing is copied.

    Raises:
        WeightMismatch: they do not fit, or would have to be cast or moved; the model is as it was.
    """
    tree = ParamTree.of(weights)
    tensors = Tensors(model, maps=True)
    tensors.check(Manifest.of(tree))
    tensors.compare(tree.tensors)
    tensors.write(tree.tensors, tree.extra)


def _are_still_there(owner: Any, names: list[str], tensors: list[torch.Tensor]) -> bool:
    return all(map(operator.is_, map(owner.get, names), tensors))


def _forms(tensors: Sequence[torch.Tensor]) -> list[list[Any]]:
    return [list(map(attribute, tensors)) for attribute in _FORM]


def _are_of(forms: Sequence[list[Any]], tensors: Sequence[torch.Tensor]) -> bool:
    """Shape by shape: ten thousand that are kept would have Python look for garbage, which takes far longer."""
    if not forms or len(forms[0]) != len(tensors):
        return False
    pairs = zip(_FORM, forms, strict=True)
    return all(all(map(operator.eq, map(attribute, tensors), those)) for attribute, those in pairs)


def _places(holder: Any, path: Path = ()) -> Any:
    """``(path, (owner, name, tensor))`` of every tensor; tied ones under each of their names."""
    if isinstance(holder, nn.Module):
        for prefix, module in holder.named_modules(remove_duplicate=False):
            parents = tuple(prefix.split(".")) if prefix else ()
            for owner in (module._parameters, module._buffers):
                for name, tensor in owner.items():
                    if tensor is not None:
                        yield (*parents, name), (owner, name, tensor)
        return
    for name, value in holder.items():
        below = (*path, *(name.split(".") if isinstance(name, str) else map(str, name)))
        if isinstance(value, torch.Tensor):
            yield below, (holder, name, value)
        elif hasattr(value, "items"):
            yield from _places(value, below)
