"""Masks secrets: values whose names speak of a secret, and passwords within addresses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

_SECRET: Final = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
_PASSWORD: Final = re.compile(r"(://[^/\s:@]*:)[^/\s@]+(?=@)")
_MASK: Final = "***"


def shown(name: str, value: str) -> str:
    """The value as a terminal or a log may show it: ``***`` where the name speaks of a secret."""
    return _MASK if _SECRET.search(name) else _PASSWORD.sub(rf"\g<1>{_MASK}", value)


def masked(data: Any, name: str = "") -> Any:
    """Plain data of mappings and lists without the secrets in it."""
    if isinstance(data, Mapping):
        return {key: masked(value, str(key)) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [masked(each, name) for each in data]
    return shown(name, data) if isinstance(data, str) else data
