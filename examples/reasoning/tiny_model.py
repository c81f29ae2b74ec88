"""A Llama of some hundred thousand parameters with a token for each character, made on the spot."""

from __future__ import annotations

from pathlib import Path

import torch
from common.generators import torch_seed
from reasoning_config import TinyModel

CHARACTERS = "0123456789+-*=,:"
"""Characters of the generated tasks."""

_UNKNOWN, _PAD, _END = "<|unknown|>", "<|pad|>", "<|end|>"
_ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
_CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def save_tiny_model(folder: Path, size: TinyModel, seed: int) -> Path:
    """Save a model with random weights and its tokenizer, in the format of Hugging Face, and return the folder."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # with transformers, seconds of imports
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokens = (_UNKNOWN, _PAD, _END, *_ROLES, *CHARACTERS)
    tokenizer = Tokenizer(models.WordLevel({token: index for index, token in enumerate(tokens)}, unk_token=_UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token=_UNKNOWN,
        pad_token=_PAD,
        eos_token=_END,
        additional_special_tokens=list(_ROLES),
        chat_template=_CHAT_TEMPLATE,
    ).save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(tokens),
        hidden_size=size.hidden_size,
        intermediate_size=size.intermediate_size,
        num_hidden_layers=size.num_hidden_layers,
        num_attention_heads=size.num_attention_heads,
        num_key_value_heads=size.num_attention_heads,
        head_dim=size.head_dim,
        max_position_embeddings=size.max_position_embeddings,
        initializer_range=size.initializer_range,
        tie_word_embeddings=True,
        pad_token_id=tokens.index(_PAD),
        bos_token_id=None,
        eos_token_id=tokens.index(_END),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(seed))
        LlamaForCausalLM(config).save_pretrained(folder)
    return folder
