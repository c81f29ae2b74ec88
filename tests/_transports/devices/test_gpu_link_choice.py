"""Choice of the link between two GPUs."""

from __future__ import annotations

import pytest

from rlinf_async._transports.devices.gpu_link_choice import Gpu, gpu_link_between

HERE = Gpu("machine 1", "GPU-1", "H100")


@pytest.mark.parametrize(
    ("theirs", "reachable", "way"),
    [
        (Gpu("machine 1", "GPU-1", "H100"), [], "cuda_ipc"),  # two ranks on one GPU, which NCCL refuses
        (Gpu("machine 1", "GPU-2", "H100"), ["GPU-2"], "cuda_ipc"),
        (Gpu("machine 1", "GPU-2", "H100"), [], "nccl"),  # each sees its own only
        (Gpu("machine 2", "GPU-3", "H100"), [], "nccl"),
        (Gpu("machine 2", "GPU-3", "H100"), ["GPU-3"], "nccl"),  # a name of another machine means nothing here
        (Gpu("machine 1", "GPU-2", "L4"), [], "staged"),
        (Gpu("machine 2", "GPU-3", "L4"), [], "staged"),
        (Gpu("machine 2", "GPU-1", "H100"), [], "staged"),  # one uuid twice: nothing to rely upon
    ],
)
def test_the_way_is_the_fastest_that_works(theirs: Gpu, reachable: list[str], way: str) -> None:
    assert gpu_link_between(HERE, theirs, reachable) == way
