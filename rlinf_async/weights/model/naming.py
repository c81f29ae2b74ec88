"""Transport names of one side's tensors, and advice if the two sides' names differ."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, TypeAlias

from rlinf_async.errors import WeightMismatch
from rlinf_async.weights.model.param_tree import ParamTree, Path, Select, name_of, path_of

Rename: TypeAlias = Mapping[str, str] | Callable[[str], str] | None

_WRAPPERS: Final = frozenset({"_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""Name components that ``torch.compile`` and torch's wrappers add."""


class Naming:
    """A mapping from one side's tensor names to transport names.

    Args:
        strip_prefix: prefix to remove from names that begin with it.
        rename: applied afterwards: a function of the name, or a dict from old names of tensors or modules to new names.
    """

    def __init__(self, strip_prefix: str = "", rename: Rename = None) -> None:
        self._prefix = path_of(strip_prefix.removesuffix(".")) if strip_prefix else ()
        self._rename = rename
        self._known: dict[Path, Path] = {}

    def __bool__(self) -> bool:
        return bool(self._prefix or self._rename)

    def of(self, path: Path) -> Path:
        """Return a tensor's transport path."""
        if path not in self._known:
            self._known[path] = self._renamed(path[len(self._prefix) :] if self._has_prefix(path) else path)
        return self._known[path]

    def _has_prefix(self, path: Path) -> bool:
        return bool(self._prefix) and len(path) > len(self._prefix) and path[: len(self._prefix)] == self._prefix

    def _renamed(self, path: Path) -> Path:
        if callable(self._rename):
            name = self._rename(name_of(path))
            if not isinstance(name, str) or not name:
                raise WeightMismatch(f"rename= gives {name!r} for {name_of(path)!r}, and a name is a string")
            return path_of(name)
        for end in range(len(path), 0, -1) if self._rename else ():
            if (new := self._rename.get(name_of(path[:end]))) is not None:  # type: ignore[union-attr]  # it is a mapping
                return (*path_of(new), *path[end:])
        return path

    def tree_of(self, source: Any, select: Select) -> ParamTree:
        """Return a source's weights under their transport paths; errors as for ``ParamTree.of``."""
        return ParamTree.of(source, select, self.all_of) if self else ParamTree.of(source, select)

    def all_of(self, found: Mapping[Path, Any]) -> dict[Path, Any]:
        """Return the same values under their transport paths.

        Raises:
            WeightMismatch: two values would have the same name.
        """
        renamed: dict[Path, Any] = {}
        for path, value in found.items():
            new = self.of(path)
            if new in renamed:
                raise WeightMismatch(
                    f"{name_of(path)!r} and another tensor would both travel as {name_of(new)!r}: see strip_prefix= "
                    "and rename="
                )
            renamed[new] = value
        return renamed


UNCHANGED: Final = Naming()


def advice(destination: Collection[Path], weights: Collection[Path]) -> str:
    """Return advice if the names differ only by a prefix; otherwise an empty text."""
    unknown = [path for path in weights if path not in destination]
    if not unknown:
        return ""
    first = unknown[0]
    for end in range(1, len(first)):
        if all(path[:end] == first[:end] and path[end:] in destination for path in unknown):
            return _advice("weights", first[:end], "trainer")
    for prefix in sorted({path[: -len(first)] for path in destination if path[-len(first) :] == first}):
        if all((*prefix, *path) in destination for path in unknown):
            return _advice("destination", prefix, "receiver")
    theirs, mine = ({_plain(path) for path in paths} for paths in (unknown, destination))
    if theirs <= mine:
        parts = sorted({part for path in (*unknown, *destination) for part in path if part in _WRAPPERS})
        which = " and ".join(repr(part + ".") for part in parts)
        return (
            f". The names of the two sides differ by {which} of wrapped modules: rename= on that side takes a "
            f"function, such as lambda name: name.replace({parts[0] + '.'!r}, '')"
        )
    return ""


def _advice(whose: str, prefix: Path, side: str) -> str:
    text = name_of(prefix) + "."
    other = "destination" if whose == "weights" else "weights"
    return (
        f". The names of the {whose} begin with {text!r} and those of the {other} do not: "
        f"strip_prefix={text!r} on the {side}'s side takes it off"
    )


def _plain(path: Path) -> Path:
    return tuple(part for part in path if part not in _WRAPPERS)
