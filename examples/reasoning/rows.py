"""Rows of a data set in JSON lines: a prompt, as text or as the messages of a chat, and what its reward needs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from rlinf_async.errors import ConfigError

Prompt: TypeAlias = str | list[dict[str, Any]]


@dataclass(frozen=True)
class Row:
    """One line of a file: ``{"messages": [{"role": "user", "content": "…"}], "meta": {…}}``, or with ``"prompt"``.

    Attributes:
        prompt: a text, which is encoded as it is, or messages, to which the tokenizer's chat template is applied.
        meta: what the reward function gets beside prompt and response.
    """

    prompt: Prompt
    meta: dict[str, Any] = field(default_factory=dict)


def read_rows(path: str | Path) -> list[Row]:
    """Read a file of rows.

    Raises:
        ConfigError: there is no such file, it has no rows, or a line is none; the message has its number and the fix.
    """
    try:
        lines = Path(path).read_text().splitlines()
    except OSError as error:
        raise ConfigError(f"no data in {path} ({error.strerror}): name a file of JSON lines") from error
    rows = [_read_row(f"{path}, line {number}", line) for number, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise ConfigError(f"{path} has no rows: write one JSON object with messages or prompt on each line")
    return rows


def _read_row(place: str, line: str) -> Row:
    try:
        fields = json.loads(line)
        prompt, meta = fields.get("messages") or fields["prompt"], fields.get("meta", {})
        if not isinstance(prompt, str):
            prompt = [{"role": each["role"], **each} for each in prompt]
        if not prompt or not isinstance(meta, dict):
            raise TypeError("an empty prompt, or meta that is no object")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{place}: {line[:80]!r} is no row ({error!r}): write an object with messages (a list of objects with role "
            "and content) or prompt (a text), and meta (an object) if the reward needs it"
        ) from error
    return Row(prompt, meta)


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write a file that ``read_rows`` reads."""
    path.parent.mkdir(parents=True, exist_ok=True)
    keys = {str: "prompt", list: "messages"}
    path.write_text("".join(json.dumps({keys[type(row.prompt)]: row.prompt, "meta": row.meta}) + "\n" for row in rows))


class ShuffledRows:
    """Rows without end: epoch after epoch, each in an order that depends on nothing but the seed."""

    def __init__(self, rows: list[Row], seed: int) -> None:
        self._rows, self._seed, self._epoch = rows, seed, -1

    def __getitem__(self, index: int) -> Row:
        epoch, place = divmod(index, len(self._rows))
        if epoch != self._epoch:
            self._order = np.random.default_rng([self._seed, epoch]).permutation(len(self._rows))
            self._epoch = epoch
        return self._rows[self._order[place]]
