"""Links between GPUs, on real GPUs, between processes."""

from __future__ import annotations

import pytest
import torch

from tests._support.link_processes import finish, peers

MiB = 1 << 20

pytestmark = pytest.mark.gpu


def needed(kind: str) -> int:
    return 2 if kind == "nccl" else 1


@pytest.mark.parametrize("kind", ["staged", "cuda_ipc", "nccl"])
def test_gpu_memory_goes_both_ways_and_on_after_a_discard_and_a_death(kind: str) -> None:
    count = torch.cuda.device_count()
    if count < needed(kind):
        pytest.skip(
            f"{kind} needs {needed(kind)} NVIDIA GPUs and a torch built for CUDA, and there are {count}: "
            "run the tests on a machine that has them"
        )
    with peers(dict.fromkeys("abc", "127.0.0.1"), kind=kind) as three:
        finish([*three.transfer("a", "b", 0, 64 * MiB), *three.transfer("b", "a", 0, 64 * MiB)], 60)
        for number in range(1, 9):
            finish([*three.transfer("a", "b", number, 100_000), *three.transfer("b", "a", number, 5 * MiB)], 60)
        sent = three.send("a", "b", 9, 64 * MiB)
        three.discard("a", "b")
        with pytest.raises(RuntimeError, match="the deadline has passed"):
            sent.result(5)
        finish([*three.transfer("a", "b", 10, MiB), *three.transfer("b", "a", 10, MiB)], 60)
        three.kill("b")
        three.discard("a", "b", "WorkerDied")
        if count > needed(kind) or kind != "nccl":
            finish([*three.transfer("a", "c", 0, 8 * MiB), *three.transfer("c", "a", 0, 8 * MiB)], 60)
