from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from generation import generate
from grpo import clip_fraction, clipped_policy_loss, group_relative_advantages, mean_of_responses, reference_kl
from language_model import build_model, load_model, response_log_probabilities, save_model
from problems import Problem
from reasoning_config import SCHEMA
from solver import Solver
from tokenizer import CharacterTokenizer

from rlinf_async.errors import ConfigError

TOKENIZER = CharacterTokenizer()
ALL = torch.ones(2, 3, dtype=torch.bool)


@pytest.fixture(scope="module")
def model() -> Any:
    size = SCHEMA.load("two_terms_disaggregated", ["actor.model.hidden_size=16"]).actor.model
    return build_model(size, TOKENIZER, seed=0)


def test_an_advantage_is_relative_to_the_group_in_standard_deviations() -> None:
    rewards = torch.tensor([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
    advantages = group_relative_advantages(rewards, epsilon=0.0 + 1e-9)
    torch.testing.assert_close(advantages[0], torch.tensor([1.5, -0.5, -0.5, -0.5]))
    torch.testing.assert_close(advantages[1], torch.tensor([0.5, 0.5, 0.5, -1.5]))
    assert advantages[2].tolist() == [0.0] * 4


def test_the_gradient_ends_where_the_ratio_has_moved_far_enough_in_the_wanted_direction() -> None:
    old = torch.zeros(2, 3)
    new = torch.tensor([[0.5, 0.0, -0.5], [0.5, 0.0, -0.5]], requires_grad=True)
    clipped_policy_loss(new, old, torch.tensor([1.0, -1.0]), ALL, 0.2).backward()
    assert new.grad is not None
    assert (new.grad != 0).tolist() == [[False, True, True], [True, True, False]]
    assert clip_fraction(new, old, ALL, 0.2).item() == pytest.approx(2 / 3)


def test_padding_counts_for_nothing_whatever_stands_there() -> None:
    mask = torch.tensor([[True, True, True], [True, False, False]])
    values = torch.tensor([[1.0, 2.0, 3.0], [4.0, float("inf"), float("nan")]])
    assert mean_of_responses(values, mask).item() == 3.0
    old = torch.tensor([[0.0, 0.0, 0.0], [0.0, 1e30, -1e30]])
    loss = clipped_policy_loss(torch.zeros(2, 3), old, torch.ones(2), mask, 0.2)
    assert loss.item() == -1.0


def test_the_distance_to_the_reference_is_zero_at_it_and_positive_elsewhere() -> None:
    here = torch.full((2, 3), -1.0)
    assert reference_kl(here, here, ALL).item() == 0.0
    assert reference_kl(here, here + 0.3, ALL).item() > 0
    assert reference_kl(here, here - 0.3, ALL).item() > 0


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_sampling_with_a_cache_and_scoring_without_agree(model: Any, temperature: float) -> None:
    """Whatever the lengths of the prompts; the ratio of a fresh sample is one."""
    prompts = torch.tensor(TOKENIZER.pad_left(["1+2=", "27+48=", "9-9="]))
    generated = generate(
        model,
        prompts,
        samples=4,
        max_new_tokens=6,
        temperature=temperature,
        pad_id=TOKENIZER.pad_id,
        end_id=TOKENIZER.end_id,
        generator=torch.Generator().manual_seed(1),
    )
    scored = response_log_probabilities(
        model, prompts.repeat_interleave(4, 0), generated.tokens, pad_id=TOKENIZER.pad_id, temperature=temperature
    )
    mask = generated.tokens != TOKENIZER.pad_id
    torch.testing.assert_close(scored[mask], generated.log_probabilities[mask], rtol=1e-4, atol=1e-4)
    assert (generated.log_probabilities[~mask] == 0).all()


def test_nothing_follows_the_end_of_a_response(model: Any) -> None:
    prompts = torch.tensor(TOKENIZER.pad_left(["1+2="])).repeat(64, 1)
    generator = torch.Generator().manual_seed(0)
    rows = generate(
        model, prompts, samples=1, max_new_tokens=8, temperature=5.0, pad_id=0, end_id=1, generator=generator
    ).tokens.tolist()
    ended = [row for row in rows if 1 in row[:-1]]
    assert ended
    assert all(set(row[row.index(1) + 1 :]) == {0} for row in ended)


def test_a_response_without_an_end_is_none(model: Any) -> None:
    solver = Solver(model, TOKENIZER, max_new_tokens=1, device=torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    _, texts = solver.sample(solver.prompts([Problem((1, 2))]), samples=64, temperature=3.0, generator=generator)
    assert set(texts) == {None, ""}
    assert solver.answer([]) == []


def test_a_model_is_kept_in_a_folder_with_its_tied_weights(model: Any, tmp_path: Path) -> None:
    save_model(model, tmp_path)
    again = load_model(str(tmp_path), TOKENIZER)
    assert again.lm_head.weight is again.model.embed_tokens.weight
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in model.state_dict().items())


def test_a_model_with_another_vocabulary_is_refused(model: Any, tmp_path: Path) -> None:
    save_model(model, tmp_path)
    with pytest.raises(ConfigError, match=r"knows 15 tokens, the tokenizer 5; set actor\.tokenizer\.tokenizer_model"):
        load_model(str(tmp_path), CharacterTokenizer("abc"))
    with pytest.raises(ConfigError, match="no model in nowhere"):
        load_model("nowhere", TOKENIZER)
