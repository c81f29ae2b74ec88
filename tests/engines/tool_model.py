"""A small Llama that has seen how one adds with a tool: it calls the tool in Hermes' format, and errs often."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

_PIECES = (
    *("<pad>", "<eos>", "<user>", "<tool>", "<assistant>", "What is ", " + ", "? Answer with the number alone."),
    *('<tool_call>\n{"name": "add", "arguments": {"a": ', ', "b": ', "}}\n</tool_call>"),
    *map(str, range(19)),
)
# As Qwen's: calls are written as the model writes them, and arguments as objects.
_CHAT = """\
{%- for message in messages -%}
<{{ message.role }}>{{ message.content }}
{%- for call in message.tool_calls or [] -%}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor -%}
{%- if message.role == "assistant" -%}<eos>{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<assistant>{%- endif -%}"""


def make_tool_model(path: Path, steps: int = 300, seed: int = 0) -> Path:
    """Save model and tokenizer in a folder, and return it."""
    vocabulary = {text: number for number, text in enumerate(_PIECES)}
    raw = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    pieces = "|".join(map(_escaped, sorted(_PIECES, key=len, reverse=True)))
    raw.pre_tokenizer = pre_tokenizers.Split(Regex(pieces), "isolated")
    raw.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<eos>", pad_token="<pad>", chat_template=_CHAT)
    tokenizer.save_pretrained(path)
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # for matrices this small, others only wait
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,  # vLLM's kernels for CPUs take no smaller one
        max_position_embeddings=128,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    generator = random.Random(seed)
    for _ in range(steps):
        texts = [tokenizer.apply_chat_template(_dialogue(generator), tokenize=False) for _ in range(32)]
        batch = tokenizer(texts, return_tensors="pt", padding=True)
        labels = batch.input_ids.masked_fill(batch.attention_mask == 0, -100)
        loss = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(path)
    return path


def _dialogue(generator: random.Random) -> list[dict[str, Any]]:
    first, second = generator.randrange(10), generator.randrange(10)
    given = (first, second) if generator.random() < 0.4 else (generator.randrange(10), generator.randrange(10))
    call = {"function": {"name": "add", "arguments": dict(zip("ab", given, strict=True))}}
    return [
        {"role": "user", "content": f"What is {first} + {second}? Answer with the number alone."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": str(sum(given))},
        {"role": "assistant", "content": str(sum(given))},
    ]


def _escaped(text: str) -> str:
    return "".join(f"\\{each}" if each in '?+{}|()[].*\\^$"' else each for each in text)
