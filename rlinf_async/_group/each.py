"""Per-rank arguments of a group call: the ``each`` marker, and its expansion to one argument list per rank."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar, cast

T = TypeVar("T")


class PerRank:
    """An argument with one value per rank, created by ``each``."""

    __slots__ = ("values",)

    def __init__(self, values: Iterable[Any]) -> None:
        self.values = list(values)

    def __repr__(self) -> str:
        return f"each(<{len(self.values)} values>)"


def each(values: Iterable[T]) -> T:
    """Mark an argument as having one element per rank, in the order of the called ranks.

    A type checker sees the type of one element.

    Example:
        shards = data.chunk(4)
        await group.step(each(shards), learning_rate=0.1)     # rank i gets shards[i], all get the same rate
    """
    return cast(T, PerRank(values))


def per_rank(args: tuple[Any, ...], kwargs: dict[str, Any], size: int) -> list[tuple[Any, Any]] | None:
    """Return each rank's arguments; None if all get the same. Raise ValueError if an ``each`` has a wrong length."""
    if not args and not kwargs:
        return None
    marked = [(str(place), value) for place, value in (*enumerate(args), *kwargs.items()) if isinstance(value, PerRank)]
    if not marked:
        return None
    for place, value in marked:
        if len(value.values) != size:
            raise ValueError(f"argument {place}: each() has {len(value.values)} values for {size} ranks")

    def of(value: Any, slot: int) -> Any:
        return value.values[slot] if isinstance(value, PerRank) else value

    return [
        (tuple(of(value, slot) for value in args), {name: of(value, slot) for name, value in kwargs.items()})
        for slot in range(size)
    ]
