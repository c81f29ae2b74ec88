"""The mark of methods that may be called once more."""

from __future__ import annotations

import pytest

from rlinf_async import idempotent
from rlinf_async._group.idempotent import is_idempotent


class Marked:
    @idempotent
    def plain(self) -> int:
        return 1

    @idempotent
    async def coroutine(self) -> int:
        return 1

    @idempotent
    @staticmethod
    def static() -> int:
        return 1

    def other(self) -> int:
        return 1


class Below(Marked):
    def plain(self) -> int:
        return 2


def test_methods_of_all_kinds_are_marked_and_work_as_before() -> None:
    assert [is_idempotent(getattr(Marked, name)) for name in ("plain", "coroutine", "static", "other")] == [
        True, True, True, False,
    ]  # fmt: skip
    assert Marked().plain() == Marked.static() == 1


def test_what_a_subclass_writes_anew_is_marked_only_if_it_says_so() -> None:
    assert not is_idempotent(Below.plain)
    assert is_idempotent(Below.coroutine)


def test_an_async_generator_is_marked_if_it_takes_the_items_that_have_come() -> None:
    async def stream(*, resume: object = ()) -> object:
        yield resume

    async def by_position(resume: object = ()) -> object:
        yield resume

    assert is_idempotent(idempotent(stream))
    with pytest.raises(TypeError, match=r"return a list, or take the items that have come as `\*, resume=\(\)`"):
        idempotent(by_position)


def test_generators_and_other_things_are_refused() -> None:
    def generator() -> object:
        yield 1

    async def stream() -> object:
        yield 1

    for function in (generator, stream):
        with pytest.raises(TypeError, match=f"{function.__name__} is a generator, of whose items .* return a list"):
            idempotent(function)
    with pytest.raises(TypeError, match="is for methods of workers, got 3"):
        idempotent(3)  # type: ignore[type-var]
