"""Models of transformers: load and shard them, encode demonstrations, and make a tiny one on the spot.

``transformers`` takes seconds to import: it is left to the ranks that have a model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from common.generators import torch_seed
from generated_data import CHARACTERS
from reasoning_config import TinyModel
from rows import Prompt

from rlinf_async.errors import ConfigError

_SPECIAL = ("<|unknown|>", "<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
_UNKNOWN, _PAD, _END, *_ROLES = _SPECIAL
_CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def load_model(path: str, device: torch.device, ranks: int) -> tuple[Any, Any]:
    """Load a causal language model in float32 and its tokenizer; with several ranks, shard the model by FSDP2."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    _hide_progress()
    try:
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).to(device).eval()
        tokenizer = AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        words, fix = str(error).partition("\n")[0], "name a folder that save_pretrained() has made"
        raise ConfigError(f"model_path: no model and tokenizer in {path} ({words}): {fix}") from error
    if ranks > 1:
        _shard(model, ranks)
    return model, tokenizer


def _shard(model: Any, ranks: int) -> None:
    # Each layer is a unit: its parameters are gathered for as long as it computes.
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(next(model.parameters()).device.type, (ranks,))
    for module in model.modules():
        if type(module).__name__ in (model._no_split_modules or ()):
            fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)


def encode_demonstration(tokenizer: Any, messages: Prompt) -> tuple[list[int], list[int]]:
    """Return the tokens of a conversation's prompt, and those of the assistant's message at its end."""
    if isinstance(messages, str) or messages[-1]["role"] != "assistant":
        raise ConfigError(f"{messages!r:.200} is no demonstration: its last message must be the assistant's")
    prompt = tokenizer.apply_chat_template(messages[:-1], add_generation_prompt=True, return_dict=True)["input_ids"]
    whole = tokenizer.apply_chat_template(messages, return_dict=True)["input_ids"]
    if whole[: len(prompt)] != prompt or len(whole) == len(prompt):
        raise ConfigError(f"the chat template does not put a response behind the prompt of {messages!r:.200}")
    return prompt, whole[len(prompt) :]


def make_tiny_model(folder: Path, size: TinyModel, seed: int) -> None:
    """Save a Llama with random weights, and its tokenizer, which has a token for each character and a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    _hide_progress()
    tokens = (*_SPECIAL, *CHARACTERS)
    tokenizer = Tokenizer(models.WordLevel({token: index for index, token in enumerate(tokens)}, unk_token=_UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    special = {"unk_token": _UNKNOWN, "pad_token": _PAD, "eos_token": _END, "additional_special_tokens": _ROLES}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=_CHAT_TEMPLATE, **special)
    fast.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(tokens),
        **{name: value for name, value in vars(size).items() if name != "model_path"},
        intermediate_size=3 * size.hidden_size,
        num_key_value_heads=size.num_attention_heads,
        head_dim=32,  # vLLM's kernels for CPUs take no smaller one
        tie_word_embeddings=True,
        pad_token_id=tokens.index(_PAD),
        bos_token_id=None,
        eos_token_id=tokens.index(_END),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(seed))
        LlamaForCausalLM(config).save_pretrained(folder)


def _hide_progress() -> None:
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
