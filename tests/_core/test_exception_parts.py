"""Exceptions made again without their constructor: raised in a worker, copied for a waiter, as a value in a call."""

from __future__ import annotations

import copyreg
import dataclasses
import pickle
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, strategies as st

from rlinf_async._core import codec
from rlinf_async._core.error_copy import copy_of
from rlinf_async._core.failures import capture, pack, rebuild, unpack
from rlinf_async.errors import RemoteError, WorkerDied


def arrive(error: Exception) -> Any:
    """What the caller gets when a worker raises this."""
    return rebuild(unpack(pack(capture(error, {"node": "node01"}))))


def as_a_value(error: Any) -> Any:
    return codec.decode(codec.encode([error]).to_bytes())[0]


WAYS = pytest.mark.parametrize("way", [arrive, copy_of, as_a_value], ids=["raised", "copied", "value"])


class NeedsTwo(Exception):
    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{code}: {reason}")


class KeywordOnly(Exception):
    def __init__(self, message: str, *, body: Any) -> None:
        super().__init__(message)
        self.body = body


class WritesItsText(Exception):
    """Made of its own ``args`` it says "no environment no environment walker"."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no environment {name}")


class NeverCallsSuper(OSError):
    def __init__(self, path: str, *, attempts: int) -> None:
        self.attempts = attempts


class OfTheSystem(OSError):
    def __init__(self, path: str, *, attempts: int) -> None:
        super().__init__(5, "Input/output error", path)
        self.attempts = attempts


class OfText(UnicodeDecodeError):
    def __init__(self, data: bytes) -> None:
        super().__init__("utf-8", data, 0, 1, "invalid start byte")


class HasSlots(Exception):
    __slots__ = ("__secret", "code", "empty")

    def __init__(self, code: int | None) -> None:
        self.code = code
        self.__secret = (code,)

    def __str__(self) -> str:
        return f"{self.code} {self.__secret}"


@dataclasses.dataclass(frozen=True)
class IsFrozen(Exception):
    code: int


class HasAProperty(Exception):
    def __init__(self) -> None:
        vars(self)["code"] = 3

    @property
    def code(self) -> int:
        raise KeyError("nobody has asked for it")


class CountsItsConstructions(Exception):
    constructed = 0

    def __init__(self) -> None:
        type(self).constructed += 1


class SetsItsState(Exception):
    secret = ""

    def __reduce__(self) -> Any:
        return SetsItsState, self.args, {**vars(self), "secret": "".join(reversed(self.secret))}

    def __setstate__(self, state: Any) -> None:
        vars(self).update(state, secret="".join(reversed(state["secret"])))


class Registered(Exception):
    pass


copyreg.pickle(Registered, lambda error: (Registered, (f"{error.args[0]}, as registered",)))


class Several(ExceptionGroup[Exception]):
    def __new__(cls, members: list[Exception], code: int) -> Several:
        self = super().__new__(cls, "several", members)
        self.code = code  # type: ignore[attr-defined]
        return self


class LoadsAsText(Exception):
    def __reduce__(self) -> Any:
        return str, ("not an exception",)


class DoesNotLoad(Exception):
    def __reduce__(self) -> Any:
        return int, ("not a number",)


class FailsInReduce(Exception):
    def __reduce__(self) -> Any:
        raise SystemExit("reduce")


class HoldsALock(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code = 7
        self.lock = threading.Lock()


class SaysItsLock(HoldsALock):
    def __str__(self) -> str:
        return f"{self.code} {self.lock.locked()}"


class MakesANewLock(HoldsALock):
    def __reduce__(self) -> Any:
        return MakesANewLock, self.args


def caught(function: Callable[[], Any]) -> Exception:
    try:
        function()
    except Exception as error:
        return error
    raise AssertionError("it has raised nothing")


def facts_of(error: BaseException) -> Any:
    """Whatever a handler may look at."""
    names = ("code", "empty", "errno", "filename", "name", "reason") if type(error) is not HasAProperty else ()
    slots = {name: getattr(error, name, "empty") for name in names}
    state = {name: value for name, value in vars(error).items() if not name.startswith(("__notes", "_rlinf"))}
    members = [facts_of(each) for each in error.exceptions] if isinstance(error, BaseExceptionGroup) else error.args
    return type(error), str(error), slots, state, members


KINDS = {
    "needs two": NeedsTwo(7, "flat tyre"),
    "keyword": KeywordOnly("no quota", body={"retry_after": 3}),
    "text": WritesItsText("walker"),
    "no super": NeverCallsSuper("/dev/robot", attempts=3),
    "system": OfTheSystem("/dev/robot", attempts=3),
    "decode": OfText(b"\xff"),
    "slots": HasSlots(7),
    "slot with None": HasSlots(None),
    "frozen": IsFrozen(7),
    "property": HasAProperty(),
    "group": ExceptionGroup("two", [ValueError(1), ExceptionGroup("in", [KeywordOnly("m", body=2)])]),
    "group of a class": Several([KeyError("k"), NeedsTwo(7, "flat tyre")], 8),
    "os": OSError(5, "Input/output error"),
    "os without a number": OSError("gone"),
    "import": caught(lambda: __import__("no_such_module")),
    "name": caught(lambda: eval("no_such_name")),
    "syntax": caught(lambda: compile("a b", "job.py", "exec")),
    "encode": caught(lambda: "\ud800".encode()),
    "attribute": caught(lambda: eval("(3).no_such_attribute")),
    "holds another": KeywordOnly("wraps", body=[NeedsTwo(7, "flat tyre").args, {"of": 3}]),
    "death": WorkerDied("rank 3 died"),
}  # fmt: skip


@WAYS
@pytest.mark.parametrize("error", KINDS.values(), ids=KINDS)
def test_an_exception_is_the_same_whatever_its_constructor_takes(error: Exception, way: Callable[[Any], Any]) -> None:
    error.__dict__["attempt"] = 3  # set later
    again = way(error)
    assert again is not error
    assert facts_of(again) == facts_of(error)


@WAYS
@given(
    base=st.sampled_from([Exception, OSError, KeyError, SyntaxError, UnicodeDecodeError, ImportError]),
    arguments=st.lists(st.none() | st.integers() | st.text(max_size=3), max_size=5),
    attributes=st.dictionaries(st.sampled_from("abcd"), st.integers() | st.lists(st.text(max_size=3), max_size=2)),
    slots=st.dictionaries(st.sampled_from(["one", "__two"]), st.none() | st.integers()),
)  # fmt: skip
def test_whatever_a_class_is_made_of_nothing_is_lost(
    way: Any, base: Any, arguments: list[Any], attributes: dict[str, Any], slots: dict[str, Any]
) -> None:
    def construct(self: Any, *, _only_by_name: int) -> None:
        pass

    made = type("Made", (base,), {"__slots__": list(slots), "__init__": construct, "__module__": "__main__"})
    error = base.__new__(made)
    error.args = arguments
    vars(error).update(attributes)
    mangled = {name.replace("__", "_Made__"): value for name, value in slots.items()}
    for name, value in mangled.items():
        setattr(error, name, value)
    again = way(error)
    assert type(again) is made
    assert again.args == error.args
    assert {name: getattr(again, name) for name in mangled} == mangled
    assert {name: getattr(again, name) for name in attributes} == attributes


@WAYS
def test_no_constructor_runs(way: Callable[[Any], Any]) -> None:
    error = CountsItsConstructions()
    before = CountsItsConstructions.constructed
    way(error)
    assert CountsItsConstructions.constructed == before


@pytest.mark.parametrize("way", [arrive, as_a_value], ids=["raised", "value"])
def test_a_class_that_pickles_itself_is_asked(way: Callable[[Any], Any]) -> None:
    error = SetsItsState("x")
    error.secret = "ab"
    assert way(error).secret == "ab"
    assert way(MakesANewLock("x")).lock.acquire(blocking=False)
    assert str(way(Registered("x"))) == "x, as registered"


@WAYS
def test_an_extension_that_allocates_its_exceptions_is_asked(way: Callable[[Any], Any]) -> None:
    core = pytest.importorskip("pydantic_core")
    error = core.ValidationError.from_exception_data("Config", [{"type": "missing", "loc": ("lr",), "input": {}}])
    again = way(error)
    assert (type(again), str(again), again.errors()) == (type(error), str(error), error.errors())


@pytest.mark.parametrize("kind", [LoadsAsText, DoesNotLoad, FailsInReduce])
def test_a_class_that_pickles_itself_wrongly_is_not_asked(kind: type[Exception]) -> None:
    error = kind("a", 3)
    error.attempt = 3  # type: ignore[attr-defined]
    assert facts_of(arrive(error)) == facts_of(error)


# -- parts that do not travel -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "args", "named"),
    [
        (HoldsALock("locked"), ("locked",), "'lock' cannot travel: lock is of type _thread.lock"),
        (SaysItsLock("locked"), ("locked",), "'lock' cannot travel"),
        (KeywordOnly("big", body=bytes(2 << 20)), ("big",), "'body' cannot travel: it has 2097"),
        (ValueError("big", bytes(2 << 20)), None, "'args' cannot travel: it has 2097"),
        (KeyError(i for i in ()), None, "'args' cannot travel: args[0] is of type generator"),
        (caught(lambda: (b"x" * (2 << 20) + b"\xff").decode()), None, "'object' cannot travel: it has 2097"),
        (ExceptionGroup("two", [HoldsALock("locked"), KeyError(3)]), None, None),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_cannot_travel_is_named_and_the_rest_arrives(error: Exception, args: Any, named: str | None) -> None:
    again = arrive(error)
    assert isinstance(again, type(error))
    assert type(again).__qualname__ == type(error).__qualname__
    assert str(again)[:200] == str(error)[:200]
    assert args is None or again.args == args
    assert getattr(again, "code", None) == getattr(error, "code", None)
    if named is not None:
        note = again.__notes__[0]
        assert note.startswith("left behind in the other process, and missing here:\n    ")
        assert named in note
    assert not hasattr(again, "lock")


def test_a_class_or_attribute_that_is_not_here_costs_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = types.ModuleType("elsewhere")
    exec("class Lost(ValueError): pass\nclass Answer: pass", vars(elsewhere))
    monkeypatch.setitem(sys.modules, "elsewhere", elsewhere)
    error = KeywordOnly("m", body=elsewhere.Answer())
    error.__cause__ = elsewhere.Lost("cause")
    packed = pack(capture(ExceptionGroup("two", [elsewhere.Lost("here"), error, KeyError("k")]), {}))
    alone = pack(capture(elsewhere.Lost("alone"), {}))
    monkeypatch.delitem(sys.modules, "elsewhere")
    lost, kept, key = rebuild(unpack(packed)).exceptions  # type: ignore[attr-defined]
    assert (type(lost), str(lost), type(key)) == (RemoteError, "elsewhere.Lost: here", KeyError)
    assert (type(kept), kept.args, vars(kept).keys()) == (KeywordOnly, ("m",), {"__notes__"})
    assert "'body': what arrived cannot be rebuilt: there is no module 'elsewhere'" in kept.__notes__[0]
    assert str(kept.__cause__) == "elsewhere.Lost: cause"
    assert type(rebuild(unpack(alone))) is RemoteError


def test_members_of_a_group_are_caught_each_by_its_class() -> None:
    seen: list[Any] = []
    try:
        raise arrive(KINDS["group"])
    except* KeywordOnly as found:
        seen += found.exceptions[0].exceptions  # type: ignore[attr-defined]
    except* ValueError as found:
        seen += found.exceptions
    assert {type(each) for each in seen} == {KeywordOnly, ValueError}


def test_causes_travel_as_exceptions_and_circles_of_them_end() -> None:
    outer, inner = KeywordOnly("outer", body=1), NeedsTwo(7, "inner")
    inner.add_note("while stepping env 3")
    outer.__cause__, inner.__cause__ = inner, outer
    again = arrive(outer)
    cause = again.__cause__
    assert (type(cause), str(cause), cause.__notes__, cause.__cause__) == (
        NeedsTwo, "7: inner", ["while stepping env 3"], None,
    )  # fmt: skip
    assert type(arrive(caught(lambda: _time_out())).__cause__) is KeyboardInterrupt


def _time_out() -> None:
    raise TimeoutError("late") from KeyboardInterrupt()


def test_what_has_arrived_with_parts_missing_travels_on() -> None:
    again = arrive(arrive(SaysItsLock("locked")))
    assert isinstance(again, SaysItsLock)
    assert str(again) == "7 False"
    assert sum("left behind" in note for note in again.__notes__) == 1


def test_an_exception_that_holds_itself_travels_as_a_value() -> None:
    error = KeywordOnly("m", body=None)
    error.body = error
    again = as_a_value(error)
    assert again.body is again
    with pytest.raises(TypeError):
        pickle.loads(pickle.dumps(error))  # by its constructor
