"""Typed access to one mapping in a configuration; errors name file, line, key, value and fix."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from rlinf_async.configuration.document import Origin, Steps, name_steps
from rlinf_async.errors import ConfigError


class Section:
    """A mapping with a known set of keys.

    Args:
        values: plain values.
        steps: path of the section in the configuration.
        origin: file of the configuration, if known.
        known: allowed keys.
        needed: mandatory keys.
        kind: description of the section for errors, such as ``"node group"``.

    Raises:
        ConfigError: a mandatory key is missing, or a key is unknown; the message suggests a similar one.
    """

    def __init__(
        self,
        values: Mapping[Any, Any],
        steps: Steps,
        origin: Origin | None,
        *,
        kind: str,
        known: Collection[str],
        needed: Collection[str] = (),
    ) -> None:
        self._values = values
        self.steps = steps
        self.origin = origin
        unknown = [key for key in values if key not in known]
        if unknown:
            hints = "".join(did_you_mean(str(key), known) for key in unknown)
            raise self.error(
                f"Unknown fields {_braces(unknown)} detected in {kind}{hints}; it has: {', '.join(known)}",
                str(unknown[0]),
            )
        missing = [key for key in needed if values.get(key) is None]
        if missing:
            raise self.error(f"Missing fields {missing} detected in {kind}")

    def __contains__(self, key: str) -> bool:
        return self._values.get(key) is not None

    def get(self, key: str, default: Any = None) -> Any:
        """Return a key's value; the default if the key is missing or null."""
        value = self._values.get(key)
        return default if value is None else value

    def error(self, text: str, *further: str | int) -> ConfigError:
        """Return an error with the location of the section, or of the value at the further steps below it."""
        return misplaced((*self.steps, *further), self.origin, text)

    def text(self, key: str) -> str | None:
        """Return a non-empty string, or None if the key is missing. Raises ConfigError."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, str) or not value or "\0" in value:
            raise self.error(f"{key} must be a text, got {value!r}", key)
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.error(f"{key} must be true or false, got {value!r}", key)
        return value

    def number(self, key: str) -> float | None:
        """Return a non-negative number, or None if the key is missing. Raises ConfigError."""
        value = self.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= sys.float_info.max:
            raise self.error(f"{key} must be a number that is not negative, got {value!r}", key)
        return float(value)

    def entries(self, key: str) -> Sequence[Any]:
        """Return a list; empty if the key is missing. Raises ConfigError."""
        value = self.get(key, ())
        if isinstance(value, str | bytes) or not isinstance(value, Sequence):
            raise self.error(f"{key} must be a list, got {value!r}", key)
        return value

    def mapping(self, key: str) -> Mapping[Any, Any]:
        """Return a mapping; empty if the key is missing. Raises ConfigError."""
        value = self.get(key, {})
        if not isinstance(value, Mapping):
            raise self.error(f"{key} must be a mapping, got {value!r}", key)
        return value


def misplaced(steps: Steps, origin: Origin | None, text: str) -> ConfigError:
    """Return an error such as ``config.yaml:7: cluster.node_groups[0]: text``, omitting unknown parts."""
    where = [origin.locate(steps)] if origin is not None else []
    where += [name_steps(steps)] if steps else []
    return ConfigError(": ".join([*where, text]))


def did_you_mean(name: str, known: Collection[str]) -> str:
    """Return `` (did you mean 'label'?)`` if a known name is similar, else an empty string."""
    by_lower = {each.lower(): each for each in known}
    close = get_close_matches(name.lower(), list(by_lower), 1)
    return f" (did you mean {by_lower[close[0]]!r}?)" if close else ""


def _braces(names: Sequence[Any]) -> str:
    return "{" + ", ".join(repr(str(name)) for name in names) + "}"
