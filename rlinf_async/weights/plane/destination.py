"""Destination of a receiver's weights: a module, mappings or a function, found before each version, fitted, written."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import nn
from torch.autograd.graph import increment_version

from rlinf_async._core.own_logger import own_logger
from rlinf_async.weights.memory.cuda import CUDA
from rlinf_async.weights.memory.gpus import Gpus
from rlinf_async.weights.model.copying import copy_tensors
from rlinf_async.weights.model.digests import digests_of
from rlinf_async.weights.model.fit import Fit
from rlinf_async.weights.model.manifest import Manifest
from rlinf_async.weights.model.naming import UNCHANGED, Naming
from rlinf_async.weights.model.param_tree import Path
from rlinf_async.weights.model.shards import ShardOption
from rlinf_async.weights.model.writing import Update, copy_in_turn, stand_in

logger = own_logger(__name__)

Views = Mapping[Path, torch.Tensor]

_NOTHING: Final = object()

_ELSEWHERE: Final = "the sender has them elsewhere"


class Destination:
    """Tensors of a module, of nested mappings or of a TensorDict; or a function of ``{path: tensor}``; or None.

    Args:
        find: gives it, which may be another object from version to version, or raises why there is none.
        maps: tensors come to stand in the sender's memory, instead of being overwritten.
        strict_dtype: nothing is cast.
        naming: gives the names under which the sender knows its tensors.
        shard: mesh and placements of plain tensors that are shards; see ``Fit``.

    Attributes:
        places: the GPUs that some of it is on, once it is checked.
        device: the GPU that all of it is on.
        is_whole: no write has broken off half way since one has ended.
    """

    def __init__(
        self,
        find: Callable[[], Any],
        *,
        maps: bool,
        strict_dtype: bool = False,
        naming: Naming = UNCHANGED,
        shard: ShardOption = None,
        gpus: Gpus = CUDA,
    ) -> None:
        self._find = find
        self._options: dict[str, Any] = {
            "maps": maps,
            "strict_dtype": strict_dtype,
            "naming": naming,
            "shard": shard,
        }
        self._gpus = gpus
        self.places: set[torch.device] = set()
        self.device: torch.device | None = None
        self.is_whole = True
        self._holder: Any = _NOTHING
        """What is written to; at first nothing that could be found."""
        self._found: Any = None
        self._manifest: Manifest | None = None
        self._fit: Fit | None = None
        self._mapped: Sequence[torch.Tensor] = ()
        """Tensors that stand in the sender's memory, of the destination or replaced in it since."""
        self._is_told = False
        self._is_first = True
        """Nothing has been written yet of what the sender has said last that comes."""

    @property
    def is_copied(self) -> bool:
        """Whether its tensors are in memory of their own, though they were to be mapped."""
        return self._fit is not None and not self._mapped

    def has_moved(self) -> bool:
        """Whether it is another object by now than the one that was checked; takes microseconds.

        Raises:
            Exception: there is none.
        """
        self._found = self._find()
        return self._found is not self._holder

    def check(self, manifest: Manifest) -> None:
        """Judges what was found last, which takes the place of what was there before if it fits.

        Raises:
            WeightMismatch: it does not.
        """
        found = self._found
        fit = None if _is_function(found) else Fit(found, manifest, mapped=self._mapped, **self._options)
        if found is not self._holder:
            self.detach()  # what others may have of it is not overwritten with the slot that it stands in
        self._is_first = self._manifest is not manifest
        self._holder, self._fit, self._manifest = found, fit, manifest
        targets = [] if fit is None else fit.targets
        self.places, self.device = self._gpus.places(targets), self._gpus.only_place(targets)

    def compare(self, views: Views, extra: Mapping[Path, Any]) -> None:
        """Judges a version before it is written, while others still read.

        Raises:
            WeightMismatch: it does not fit the destination as it is by now; nothing was written.
        """
        if self._fit is not None and self._manifest is not None and not self._fit.is_current():
            self.check(self._manifest)
        if self._fit is not None:
            self._fit.check(list(views.values()), extra)

    @property
    def standing(self) -> int:
        """Number of its tensors that stand in the sender's memory."""
        return len(self._mapped)

    def write(self, views: Views, extra: Mapping[Path, Any], *, copies: bool = False) -> None:
        """Applies a version that was compared; nobody reads meanwhile.  The views are only lent, unless it maps.

        Args:
            views: of all leaves, in the order of the manifest.
            extra: what there is beside tensors.
            copies: this version is not mapped, but copied into memory that nothing else looks at.

        Raises:
            Exception: what a function of the user's raises, or ``set_extra_state``, after which nothing is written.
        """
        if self._fit is None:
            self.is_whole = self._holder is None
            if self._holder is not None:
                self._holder(views)
            self.is_whole = True
            return
        if not self._fit.is_held():
            self.compare(views, extra)  # somebody has replaced some of them just now
        Update.of(self._fit, list(views.values()), extra).write(functools.partial(self._place, copies=copies))

    def _place(self, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor], *, copies: bool) -> None:
        assert self._fit is not None
        self.is_whole = False
        is_far = self._fit.maps and self._gpus.only_place(sources) != self.device
        if self._fit.maps and not is_far and not copies:
            if self._mapped is not targets:
                self._unmap(targets, lambda data: data)
            if self.device is not None:
                self._gpus.settle(self.device)  # what readers have begun looks at the memory before
            stand_in(targets, sources)
            self._mapped = targets
        else:
            # The sender packs the first version before it knows where this receiver is.
            if (why := self._fit.why_copied or _ELSEWHERE * is_far) and not (self._is_first and is_far):
                self._tell(why)
            self._is_first = False
            self._unmap(targets, torch.empty_like)
            if copies:  # whoever keeps tensors of mapped versions may keep those of this one too
                for target in targets:
                    target.data = torch.empty_like(target.data)
            if self._fit.is_inference:
                copy_in_turn(targets, sources)
            elif self.places or is_far:
                self._gpus.copy(targets, sources)  # after all that readers have begun
            else:
                copy_tensors(targets, sources)
        increment_version(self._fit.wholes)  # a DTensor does not see what becomes of its local part
        self.is_whole = True

    def digests(self, views: Views) -> tuple[bytes, bytes]:
        """Of what was written, as the tensors have it now; a function has what it was given."""
        assert self._manifest is not None
        views_held = ((index, (), view) for index, view in enumerate(views.values()))
        return digests_of(self._manifest, views_held if self._fit is None else self._fit.held())

    def _tell(self, why: str) -> None:
        if not self._is_told:
            self._is_told = True
            logger.warning("weights are copied to %s and not mapped: %s", self.device or "the CPU", why)

    def _unmap(
        self,
        written: Sequence[torch.Tensor] = (),
        room: Callable[[torch.Tensor], torch.Tensor] = torch.clone,
    ) -> None:
        """Gives mapped tensors memory of their own, with what they show.

        Args:
            written: tensors that show something else next.
            room: gives memory for one of them.
        """
        next_ones = set(map(id, written))
        for tensor in self._mapped:
            tensor.data = (room if id(tensor) in next_ones else torch.clone)(tensor.data)
        self._mapped = ()

    def detach(self) -> None:
        """Gives mapped tensors memory of their own, with what they show: that of the last version is going away."""
        was_mapped = bool(self._mapped)
        self._unmap()
        if was_mapped and self.device is not None:
            self._gpus.settle(self.device)

    def forget(self) -> None:
        """Nothing is written any more: it keeps nobody's tensors alive."""
        self._find, self._found, self._holder, self._fit, self._mapped = lambda: None, None, None, None, ()


def _is_function(wanted: Any) -> bool:
    return wanted is None or (callable(wanted) and not isinstance(wanted, nn.Module) and not hasattr(wanted, "items"))
