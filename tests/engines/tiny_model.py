"""A Llama of 100 000 parameters with a tokenizer of characters, made on the spot."""

from __future__ import annotations

import threading
from pathlib import Path

import torch
import tqdm
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

# Progress bars of transformers would leave a thread and a semaphore.
tqdm.tqdm.monitor_interval = 0
tqdm.tqdm.set_lock(threading.RLock())

_SPECIAL = ("<bos>", "<eos>", "<pad>")
_CHARACTERS = "0123456789+-*/=() abcdefghijklmnopqrstuvwxyz.,?:"
_CHAT = (
    "{% for tool in tools or [] %}{{ tool['function']['name'] }}:{% endfor %}"
    "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    "{{ end }}{% if add_generation_prompt %}={% endif %}"
)


def make_model(path: Path, seed: int = 0) -> Path:
    """Save model and tokenizer in a folder, and return it."""
    vocabulary = {text: number for number, text in enumerate((*_SPECIAL, *_CHARACTERS))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    bos, eos, pad = _SPECIAL
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=bos, eos_token=eos, pad_token=pad, chat_template=_CHAT
    ).save_pretrained(path)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,  # vLLM's kernels for CPUs take no smaller one
        max_position_embeddings=512,
        initializer_range=0.2,  # so that the likeliest token is clear
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    return path
