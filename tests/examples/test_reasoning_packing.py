"""Packed sequences, and the models of transformers that they go through."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from hypothesis import given, settings, strategies as st
from language_model import encode_demonstration, load_model, make_tiny_model
from packing import divide, pack, response_log_probs, response_mask
from reasoning_config import TinyModel

from rlinf_async.errors import ConfigError

CPU = torch.device("cpu")
SEQUENCES = [([4, 6, 7], [8, 9, 2]), ([4, 10], [11]), ([4, 9, 9, 12, 13], [6, 7, 8, 2])]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    make_tiny_model(folder, TinyModel(initializer_range=0.5), seed=0)
    return folder


@pytest.fixture(scope="module")
def loaded(folder: Path) -> tuple[Any, Any]:
    return load_model(str(folder), CPU, ranks=1)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_packed_log_probs_are_those_of_each_sequence_alone(folder: Path, attention: str) -> None:
    model = load_model(str(folder), CPU, ranks=1)[0]
    model.set_attn_implementation(attention)
    packed = pack(SEQUENCES)
    with torch.no_grad():
        found = response_log_probs(model, packed)
        for row, (prompt, response) in zip(found, SEQUENCES, strict=True):
            logits = model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
            alone = logits.log_softmax(-1).gather(1, torch.tensor(response)[:, None])[:, 0]
            torch.testing.assert_close(row[: len(response)], alone, rtol=1e-5, atol=1e-5)
            assert not row[len(response) :].any()
    assert response_mask(packed.lengths).tolist() == [[True] * 3 + [False], [True] + [False] * 3, [True] * 4]


@settings(max_examples=50, deadline=None, derandomize=True, database=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=20), st.integers(1, 60), st.integers(1, 20))
def test_passes_hold_every_sequence_once_within_the_limit(lengths: list[int], limit: int, at_least: int) -> None:
    passes = divide(lengths, limit, at_least)
    assert sorted(index for each in passes for index in each) == list(range(len(lengths)))
    assert len(passes) >= min(at_least, len(lengths))
    assert all(each for each in passes)
    assert all(sum(lengths[index] for index in each) <= limit for each in passes if len(each) > 1)


def test_ranks_with_other_lengths_can_make_the_same_number_of_passes() -> None:
    long, short = divide([30, 30, 30, 30], 40), divide([3, 3, 3, 3], 40)
    assert (len(long), len(short)) == (4, 1)
    assert len(divide([3, 3, 3, 3], 40, at_least=len(long))) == 4


def test_a_demonstration_is_a_prompt_and_the_assistants_message_with_its_end(loaded: tuple[Any, Any]) -> None:
    messages = [{"role": "user", "content": "2,3=5:"}, {"role": "assistant", "content": "2+3"}]
    prompt, response = encode_demonstration(loaded[1], messages)
    assert loaded[1].decode(prompt) == "<|user|>2,3=5:<|assistant|>"
    assert loaded[1].decode(response) == "2+3<|end|>"


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ([{"role": "user", "content": "1"}], "its last message must be the assistant's"),
        ("1+1=2", "its last message must be the assistant's"),
    ],
)
def test_a_bad_demonstration_is_named(messages: Any, complaint: str, loaded: tuple[Any, Any]) -> None:
    with pytest.raises(ConfigError, match=complaint):
        encode_demonstration(loaded[1], messages)


@pytest.mark.parametrize("seed", [2**32 + 1, 10**30])
def test_a_model_depends_on_a_seed_of_any_size(seed: int, tmp_path: Path) -> None:
    for number in (seed, seed + 1):
        make_tiny_model(tmp_path / str(number), TinyModel(hidden_size=16), number)
    here, there = (load_model(str(path), CPU, 1)[0].lm_head.weight for path in sorted(tmp_path.iterdir()))
    assert not torch.equal(here, there)


def test_a_missing_model_is_named_with_its_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model_path: no model and tokenizer in .*nowhere"):
        load_model(str(tmp_path / "nowhere"), CPU, 1)
