"""Copying many tensors: one call of torch's for all of them, and two threads where torch takes only one itself."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import torch

_UNDIVIDED: Final = 32768
"""Elements up to which torch copies a tensor by one thread; it divides a larger one among those that it has."""

_WORTH: Final = 8 << 20
"""Bytes of such tensors for which a second thread pays."""


def copy_tensors(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copies each source to its target, whose dtype and device it takes on; done when it returns.

    Raises:
        Exception: torch cannot copy one of them; some have been copied then.
    """
    small = [index for index, target in enumerate(targets) if target.numel() <= _UNDIVIDED]
    if torch.get_num_threads() == 1 or sum(targets[index].nbytes for index in small) < _WORTH:
        _copy(targets, sources)
        return
    large = [index for index, target in enumerate(targets) if target.numel() > _UNDIVIDED]
    half = len(small) // 2
    with ThreadPoolExecutor(1, thread_name_prefix="half of the weights") as helper:
        other = helper.submit(_copy_some, targets, sources, small[:half])
        _copy_some(targets, sources, small[half:])
        other.result()
    _copy_some(targets, sources, large)


def _copy_some(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor], which: Sequence[int]) -> None:
    _copy([targets[index] for index in which], [sources[index] for index in which])


def _copy(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """One call for all of them: ten thousand small ones cost little more than a large one."""
    if targets:
        with torch.no_grad():  # each thread says so for itself
            torch._foreach_copy_(list(targets), list(sources))
