"""The policy's causal transformer: builds, loads and saves it, and computes log probabilities of tokens.

``transformers`` takes seconds to import: it is left to the workers that have a model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from common.generators import torch_seed
from reasoning_config import Model
from tokenizer import CharacterTokenizer
from torch import Tensor

from rlinf_async.errors import ConfigError


def build_model(size: Model, tokenizer: CharacterTokenizer, seed: int) -> Any:
    """A Llama of the size in ``actor.model`` with random weights, the same for the same seed."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=tokenizer.vocabulary_size,
        hidden_size=size.hidden_size,
        intermediate_size=size.intermediate_size,
        num_hidden_layers=size.num_hidden_layers,
        num_attention_heads=size.num_attention_heads,
        num_key_value_heads=size.num_attention_heads,
        max_position_embeddings=size.max_position_embeddings,
        initializer_range=size.initializer_range,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_id,
        bos_token_id=None,
        eos_token_id=tokenizer.end_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(seed))
        return LlamaForCausalLM(config).eval()


def load_model(place: str, tokenizer: CharacterTokenizer) -> Any:
    """The model that ``save_model`` wrote to a folder; nothing is looked for elsewhere.

    Raises:
        ConfigError: there is none, or it knows another number of tokens.
    """
    from transformers import LlamaForCausalLM

    _hide_progress()
    if not (Path(place) / "config.json").is_file():
        raise ConfigError(f"model_path: no model in {place}: a folder with config.json and model.safetensors is needed")
    model = LlamaForCausalLM.from_pretrained(place, local_files_only=True, dtype=torch.float32)
    if model.config.vocab_size != tokenizer.vocabulary_size:
        raise ConfigError(
            f"model_path: the model in {place} knows {model.config.vocab_size} tokens, the tokenizer "
            f"{tokenizer.vocabulary_size}; set actor.tokenizer.tokenizer_model to the one that it was trained with"
        )
    return model.eval()


def save_model(model: Any, folder: Path) -> None:
    """Writes what ``load_model`` reads."""
    _hide_progress()
    model.save_pretrained(folder)


def _hide_progress() -> None:
    """Models are small, and the output is for the steps."""
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()


def make_policy(model_path: str | None, cfg: Model, tokenizer: CharacterTokenizer) -> Any:
    """The model of a path; without one, one of the configured size with random weights."""
    if model_path is not None:
        return load_model(model_path, tokenizer)
    return build_model(cfg.actor.model, tokenizer, cfg.runner.seed)


def positions_of(mask: Tensor) -> Tensor:
    """Where each token stands in its text, padding not counted: ``[batch, length]`` → the same."""
    return (mask.long().cumsum(dim=1) - 1).clamp(min=0)


def token_log_probabilities(logits: Tensor, temperature: float, pad_id: int) -> Tensor:
    """``[..., vocabulary]`` → the same in float32.  Padding is no word: it has no probability."""
    logits = logits.float() / temperature
    padding = torch.arange(logits.shape[-1], device=logits.device) == pad_id
    return torch.log_softmax(logits.masked_fill(padding, float("-inf")), dim=-1)


def response_log_probabilities(
    model: Any, prompts: Tensor, responses: Tensor, *, pad_id: int, temperature: float = 1.0
) -> Tensor:
    """Of every token of the responses: its log probability after all that stands before it.

    Args:
        prompts: ``[batch, prompt length]`` ids, padded on the left.
        responses: ``[batch, response length]`` ids, padded on the right.

    Returns:
        ``[batch, response length]``, float32; 0 at padding.
    """
    ids = torch.cat([prompts, responses], dim=1)
    mask = ids != pad_id
    output = model(
        input_ids=ids,
        attention_mask=mask,
        position_ids=positions_of(mask),
        use_cache=False,
        logits_to_keep=responses.shape[1] + 1,
    )
    scores = token_log_probabilities(output.logits[:, :-1], temperature, pad_id)
    return scores.gather(2, responses[:, :, None])[:, :, 0].masked_fill(responses == pad_id, 0.0)
