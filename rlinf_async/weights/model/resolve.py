"""A model by its path: ``"policy"``, ``"env.transform[0]"``, ``"models['critic']"``."""

from __future__ import annotations

import re
from typing import Any, Final

_DOT: Final = re.compile(r"\.(?![^\[]*\])")  # not within brackets
_QUOTED: Final = re.compile(r"""(['"])(.*)\1""")


def _resolve_model(context: Any, model_id: str) -> Any:
    """
    Args:
        context: whose attribute the path begins with.
        model_id: attributes with dots between them, each with any number of integers or quoted keys in brackets.

    Raises:
        AttributeError: one does not exist; says which, in what.
        IndexError, KeyError: there is nothing at an index or key.
        ValueError: an index is neither an integer nor quoted.
    """
    parts = _DOT.split(model_id)
    found = context
    for i, part in enumerate(parts):
        name, *indices = part.split("[")
        try:
            found = getattr(found, name)
        except AttributeError as error:
            raise AttributeError(
                f"Attribute {name} from {parts[: i + 1]} not found in {'.'.join(parts[:i])}={found}"
            ) from error
        for index in indices:
            found = found[_index(index, model_id)]
    return found


def _index(text: str, model_id: str) -> int | str:
    inner = text.removesuffix("]")
    if quoted := _QUOTED.fullmatch(inner):
        return quoted[2]
    try:
        return int(inner)
    except ValueError:
        raise ValueError(f"[{text} in {model_id!r} is neither an integer nor a quoted key") from None
