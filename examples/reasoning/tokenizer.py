"""Text to token ids and back: a token for each character of a task."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from rlinf_async.errors import ConfigError

_FILE = "tokenizer.json"


class CharacterTokenizer:
    """Ids 0 and 1 are padding and the end of a text; every character of ``characters`` has the next.

    Raises:
        ValueError: a character is given twice.
    """

    pad_id = 0
    end_id = 1

    def __init__(self, characters: str) -> None:
        if len(set(characters)) != len(characters):
            raise ValueError(f"each character needs one id, and {characters!r} has some twice")
        self.characters = characters
        self._ids = {character: index for index, character in enumerate(characters, start=2)}

    @property
    def vocabulary_size(self) -> int:
        return len(self.characters) + 2

    def encode(self, text: str) -> list[int]:
        """Raises:
        ValueError: a character has no token.
        """
        unknown = sorted(set(text) - self._ids.keys())
        if unknown:
            raise ValueError(f"{text!r} has characters without a token: {unknown}; there are {self.characters!r}")
        return [self._ids[character] for character in text]

    def decode(self, ids: Iterable[int]) -> str:
        """The text up to the first end; padding is left out."""
        characters: list[str] = []
        for index in ids:
            if index == self.end_id:
                break
            if index != self.pad_id:
                characters.append(self.characters[index - 2])
        return "".join(characters)

    def pad_left(self, texts: Sequence[str]) -> list[list[int]]:
        """Their ids, padded on the left to the length of the longest: all prompts end in the same column."""
        rows = [self.encode(text) for text in texts]
        width = max(map(len, rows))
        return [[self.pad_id] * (width - len(row)) + row for row in rows]

    def pad_right(self, texts: Sequence[str]) -> list[list[int]]:
        """Their ids, each with the end behind it, padded on the right to the length of the longest."""
        rows = [[*self.encode(text), self.end_id] for text in texts]
        width = max(map(len, rows))
        return [row + [self.pad_id] * (width - len(row)) for row in rows]

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _FILE).write_text(json.dumps({"characters": self.characters}) + "\n")

    @classmethod
    def load(cls, place: str | Path | None, characters: str) -> CharacterTokenizer:
        """The tokenizer that ``save`` wrote to a folder; without a place, one for ``characters``.

        Raises:
            ConfigError: there is none, or it is not readable.
        """
        if place is None:
            return cls(characters)
        path = Path(place) / _FILE
        try:
            return cls(json.loads(path.read_text())["characters"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"actor.tokenizer.tokenizer_model: no tokenizer in {path}: {error}") from error
