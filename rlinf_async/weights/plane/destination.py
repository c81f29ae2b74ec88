"""The destination of a receiver's weights (a module, mappings or a function), found and checked before each write."""

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
from rlinf_async.weights.waiting.execution import call_safely

logger = own_logger(__name__)

Views = Mapping[Path, torch.Tensor]

_NOTHING: Final = object()

_ELSEWHERE: Final = "the sender has them elsewhere"


class Destination:
    """The tensors of a module, nested mappings or a TensorDict; or a function of ``{path: tensor}``; or None.

    Args:
        find: function that returns the destination, which may change between versions, or raises an error that says why
            there is none.
        maps: remap tensors to the sender's memory instead of overwriting them.
        strict_dtype: refuse to cast.
        naming: mapping from the destination's names to the sender's.
        shard: mesh and placements of plain tensors that are shards; see ``Fit``.

    Attributes:
        places: GPUs of its tensors, after ``check``.
        device: the single GPU that holds all of its tensors, else None.
        is_whole: False after a write that failed midway, until a later write succeeds.
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
        """The object to which versions are written; initially a placeholder that ``find`` never returns."""
        self._found: Any = None
        self._manifest: Manifest | None = None
        self._fit: Fit | None = None
        self._mapped: Sequence[torch.Tensor] = ()
        """Tensors mapped to the sender's memory, even if the destination has replaced them since."""
        self._is_told = False
        self._is_first = True
        """True until the first version of the announced weights has been written."""

    @property
    def is_copied(self) -> bool:
        """True if its tensors have their own memory although mapping was requested."""
        return self._fit is not None and not self._mapped

    def has_moved(self) -> bool:
        """True if ``find`` no longer returns the checked object; takes microseconds.

        Raises:
            Exception: there is no destination.
        """
        self._found = call_safely(self._find)
        return self._found is not self._holder

    def check(self, manifest: Manifest) -> None:
        """Check the object that was found last; it replaces the previous one if the weights fit.

        Raises:
            WeightMismatch: the weights do not fit.
        """
        found = self._found
        fit = None if _is_function(found) else Fit(found, manifest, mapped=self._mapped, **self._options)
        if found is not self._holder:
            self.detach()  # other users of its tensors keep their values when the slot is overwritten
        self._is_first = self._manifest is not manifest
        self._holder, self._fit, self._manifest = found, fit, manifest
        targets = [] if fit is None else fit.targets
        self.places, self.device = self._gpus.places(targets), self._gpus.only_place(targets)

    def compare(self, views: Views, extra: Mapping[Path, Any]) -> None:
        """Check a version before it is written, while readers continue.

        Raises:
            WeightMismatch: the version does not fit the destination as it is now; nothing was written.
        """
        if self._fit is not None and self._manifest is not None and not self._fit.is_current():
            self.check(self._manifest)
        if self._fit is not None:
            self._fit.check(list(views.values()), extra)

    @property
    def standing(self) -> int:
        """Number of its tensors that are mapped to the sender's memory."""
        return len(self._mapped)

    def write(self, views: Views, extra: Mapping[Path, Any], *, copies: bool = False) -> None:
        """Write a compared version while there are no readers. Only mapped views are referenced afterwards.

        Args:
            views: all leaves, in the order of the manifest.
            extra: values other than tensors.
            copies: copy this version into new memory instead of mapping it.

        Raises:
            Exception: raised by the user's function or by ``set_extra_state``, in which case nothing is written.
        """
        if self._fit is None:
            self.is_whole = self._holder is None
            if self._holder is not None:
                aliases = {} if self._manifest is None else self._manifest.aliases
                self._holder({**views, **{path: views[owner] for path, owner in aliases.items()}})
            self.is_whole = True
            return
        if not self._fit.is_held():
            # Other code has just replaced some of the tensors, so compare again.
            self.compare(views, extra)
        Update.of(self._fit, list(views.values()), extra).write(functools.partial(self._place, copies=copies))

    def _place(self, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor], *, copies: bool) -> None:
        assert self._fit is not None
        self.is_whole = False
        is_far = self._fit.maps and self._gpus.only_place(sources) != self.device
        if self._fit.maps and not is_far and not copies:
            if self._mapped is not targets:
                self._unmap(targets, lambda data: data)
                self._mapped = targets
            try:
                if self.device is not None:
                    self._gpus.settle(self.device)  # readers' kernels may still use the previous memory
                stand_in(targets, sources)
            except BaseException:
                self._unmap()  # some may be mapped to the version that failed, whose memory is not kept
                raise
        else:
            # Do not report the first version, which the sender packs before it knows where this receiver is.
            if (why := self._fit.why_copied or _ELSEWHERE * is_far) and not (self._is_first and is_far):
                self._tell(why)
            self._is_first = False
            self._unmap(targets, torch.empty_like)
            if copies:  # code that keeps tensors of mapped versions may keep these, too
                for target in targets:
                    target.data = torch.empty_like(target.data)
            if self._fit.is_inference:
                copy_in_turn(targets, sources)
            elif self.places or is_far:
                self._gpus.copy(targets, sources)  # the copy follows all work that readers have started
            else:
                copy_tensors(targets, sources)
        increment_version(self._fit.wholes)  # a DTensor does not notice changes to its local part
        self.is_whole = True

    def digests(self, views: Views) -> tuple[bytes, bytes]:
        """Return the forms and digests of the tensors just written; for a function, those of its arguments."""
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
        """Give mapped tensors their own memory.

        Args:
            written: tensors whose values will be replaced anyway.
            room: returns new memory for one tensor.
        """
        next_ones = set(map(id, written))
        for tensor in self._mapped:
            tensor.data = (room if id(tensor) in next_ones else torch.clone)(tensor.data)
        self._mapped = ()

    def detach(self) -> None:
        """Give mapped tensors copies of their values, because the last version's memory will be freed."""
        was_mapped = bool(self._mapped)
        self._unmap()
        if was_mapped and self.device is not None:
            self._gpus.settle(self.device)

    def forget(self) -> None:
        """Drop all references to the destination."""
        self._find, self._found, self._holder, self._fit, self._mapped = lambda: None, None, None, None, ()


def _is_function(wanted: Any) -> bool:
    return wanted is None or (callable(wanted) and not isinstance(wanted, nn.Module) and not hasattr(wanted, "items"))
