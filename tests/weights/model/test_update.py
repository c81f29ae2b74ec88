"""Updates of a model on a GPU from any thread: streams and their order, with recorders."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rlinf_async.weights.model.writing import Update, plan_update
from tests._support.fake_gpus import OnGpu


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is asked of CUDA, and when something is copied."""
    calls: list[str] = []
    copy = torch._foreach_copy_

    class Stream:
        def __init__(self, device: torch.device) -> None:
            self._device = device

        def synchronize(self) -> None:
            calls.append(f"the stream on {self._device} is done")

    def note(targets: Any, sources: Any) -> None:
        calls.append("copy")
        copy(targets, sources)

    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: calls.append(f"all on {device} is done"))
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch, "_foreach_copy_", note)
    return calls


def on_gpu(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_subclass(OnGpu)


AROUND = ["all on cuda:0 is done", "copy", "the stream on cuda:0 is done"]


@pytest.mark.parametrize("which", ["the target", "the source", "both"])
def test_readers_have_ended_before_and_the_copies_after(which: str, calls: list[str]) -> None:
    target, source = torch.zeros(3), torch.ones(3)
    targets = [target if which == "the source" else on_gpu(target)]
    Update(targets, [source if which == "the target" else on_gpu(source)], []).write()
    assert calls == AROUND
    assert target.tolist() == [1] * 3


def test_copies_that_fail_half_way_have_ended_before_anybody_hears_of_it(calls: list[str]) -> None:
    targets = [on_gpu(torch.zeros(3)), on_gpu(torch.zeros(3))]
    update = Update(targets, [on_gpu(torch.ones(3)), on_gpu(torch.ones(2))], [])
    with pytest.raises(RuntimeError):
        update.write()
    assert calls == AROUND


def test_weights_of_the_cpu_ask_nothing_of_cuda(calls: list[str]) -> None:
    model = torch.nn.Linear(2, 2)
    update = plan_update(model, {"weight": torch.ones(2, 2)})
    assert set(calls) <= {"copy"}  # of one element, where these dtypes are met for the first time
    calls.clear()
    update.write()
    assert calls == ["copy"]
    assert model.weight.tolist() == [[1, 1], [1, 1]]
