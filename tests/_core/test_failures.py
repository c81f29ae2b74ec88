"""Exceptions over the wire: rebuilt as themselves, or as a RemoteError with their traceback."""

from __future__ import annotations

import asyncio
import concurrent.futures
import math
import sys
import threading
import types
from typing import Any

import msgpack
import pytest
from hypothesis import given, strategies as st

from rlinf_async._core import failures
from rlinf_async._core.failures import Failure, capture, pack, rebuild, unpack
from rlinf_async.errors import DeadlineExceeded, RemoteError, SerializationError

ACTOR = {"group": "actor", "rank": 2, "node": "node01", "pid": 4121}
OUTER = {"group": "outer", "rank": 0, "node": "node00", "pid": 77}
LIMIT = 64 * 1024


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def arrive(error: BaseException, where: dict[str, Any] = ACTOR) -> Exception:
    """What the caller gets when a worker raises this."""
    return rebuild(unpack(pack(capture(raised(error), where))))


class HoldsALock(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


class FailsInStr(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt("str")

    __repr__ = __str__


class BadNotes(Exception):
    __notes__ = 3


class DropsItsState(Exception):
    def __reduce__(self) -> Any:
        return type(self), self.args


# -- as itself --------------------------------------------------------------------------------------------------------


def test_an_exception_arrives_as_itself_with_its_attributes() -> None:
    error = arrive(FileNotFoundError(2, "No such file", "model.pt"))
    assert type(error) is FileNotFoundError
    assert (error.errno, error.filename) == (2, "model.pt")


def test_a_note_names_the_worker_and_holds_its_traceback() -> None:
    (note,) = arrive(ValueError("bad action")).__notes__
    blank, place, first, *_, last = note.splitlines()
    assert blank == ""
    assert place == "from rank 2 of group 'actor' on node01 (pid 4121)"
    assert first == "    Traceback (most recent call last):"
    assert "in raised" in note
    assert last == "    ValueError: bad action"


def test_the_users_own_notes_arrive_once_and_first() -> None:
    for kind in (ValueError, HoldsALock, DropsItsState):
        error = kind("x")
        error.add_note("while stepping env 3")
        notes = arrive(error).__notes__
        assert notes[0] == "while stepping env 3"
        assert len(notes) == 2 + (kind is HoldsALock)


def test_of_many_notes_the_first_arrive_and_each_is_cut() -> None:
    error = ValueError("x")
    for number in range(100):
        error.add_note(f"{number} " + "x" * LIMIT)
    *notes, _ = arrive(error).__notes__
    assert [note.split()[0] for note in notes] == [*map(str, range(64))]
    assert max(map(len, notes)) <= LIMIT


def test_the_traceback_shows_causes() -> None:
    try:
        try:
            raise KeyError("weights")
        except KeyError as cause:
            raise RuntimeError("cannot load") from cause
    except RuntimeError as error:
        failure = capture(error, ACTOR)
    assert "KeyError: 'weights'" in failure.traceback
    assert "direct cause" in failure.traceback


def test_the_frameworks_frames_above_the_users_method_are_left_out() -> None:
    runtime = types.ModuleType("rlinf_async._worker.runtime_for_test")
    exec("def run(method):\n    method()", runtime.__dict__)

    def step() -> None:
        runtime.run(fail)

    def fail() -> None:
        raise ValueError("x")

    for method, begins in ((fail, "in fail"), (step, "in step")):
        with pytest.raises(ValueError, match="x") as caught:
            runtime.run(method)
        traceback = caught.value.__traceback__
        assert traceback is not None
        text = capture(caught.value.with_traceback(traceback.tb_next), ACTOR).traceback
        assert begins in text.splitlines()[1], text


def test_an_exception_group_arrives_as_itself_with_its_members() -> None:
    error = arrive(ExceptionGroup("both", [ValueError("a"), OSError(5, "b")]))
    assert isinstance(error, ExceptionGroup)
    assert [type(member) for member in error.exceptions] == [ValueError, OSError]


def test_an_exception_of_a_class_by_value_is_the_callers_own_class() -> None:
    local = type("EnvCrashed", (Exception,), {"__module__": "__main__"})
    assert type(arrive(local("x"))) is local


# -- as a RemoteError -------------------------------------------------------------------------------------------------


def test_an_exception_whose_class_does_not_travel_becomes_a_remote_error_with_the_whole_story() -> None:
    kind = type("HasALock", (Exception,), {"__module__": "__main__", "lock": threading.Lock()})
    remote = arrive(kind("locked"))
    assert isinstance(remote, RemoteError)
    assert (remote.type_name, str(remote)) == ("__main__.HasALock", "__main__.HasALock: locked")
    assert "in raised" in remote.remote_traceback
    assert "from rank 2 of group 'actor'" in remote.__notes__[0]


@pytest.mark.parametrize(
    "kind",
    [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, StopIteration, StopAsyncIteration],
)
def test_exits_and_cancellations_are_never_raised_as_themselves(kind: type[BaseException]) -> None:
    error = kind(1)
    remote = arrive(error)
    assert type(remote) is RemoteError
    assert remote.type_name.rpartition(".")[2] == kind.__name__
    forged = Failure("x", "", "", pickled=failures._Sender().take_apart(error))
    assert type(rebuild(forged)) is RemoteError


class ExitsOnArrival(Exception):
    def __reduce__(self) -> Any:
        return sys.exit, (3,)


def test_an_exception_that_exits_on_arrival_becomes_a_remote_error() -> None:
    assert type(arrive(ExitsOnArrival("no"))) is RemoteError


def test_cancellation_of_a_future_in_the_users_code_is_an_ordinary_error() -> None:
    assert type(arrive(concurrent.futures.CancelledError())) is concurrent.futures.CancelledError


def test_an_exception_whose_str_fails_is_told_without_it() -> None:
    failure = capture(raised(FailsInStr()), ACTOR)
    assert failure.text == "<its str() fails with KeyboardInterrupt>"
    assert type(rebuild(unpack(pack(failure)))) is FailsInStr


def test_a_message_of_ten_megabytes_is_cut_in_the_middle() -> None:
    failure = capture(raised(ValueError("begin" + "x" * 10_000_000 + "end")), ACTOR)
    for text in (failure.text, failure.traceback):
        assert len(text) <= LIMIT
        assert text.rstrip().endswith("end")
        assert "bytes are left out" in text
    assert failure.text.startswith("begin")
    assert len(pack(failure)) < 4 * LIMIT
    error = rebuild(failure)
    assert type(error) is ValueError
    assert str(error) == failure.text


def test_a_chain_of_ten_thousand_causes_is_left_out() -> None:
    error: Exception = ValueError("first")
    for index in range(10_000):
        cause, error = error, ValueError(str(index))
        error.__cause__ = cause
    failure = capture(raised(error), ACTOR)
    assert "in raised" in failure.traceback
    assert "ValueError: 9999" in failure.traceback
    assert "more than 64 causes" in failure.traceback
    error = rebuild(failure)
    assert type(error) is ValueError
    causes = 0
    while error.__cause__ is not None:
        causes, error = causes + 1, error.__cause__
    assert causes == 15


def test_causes_in_a_circle_and_deep_groups_are_told_too() -> None:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    assert "ValueError: two" in capture(one, ACTOR).traceback
    group: Exception = ValueError("innermost")
    for _ in range(10_000):
        group = ExceptionGroup("layer", [group])
    assert capture(raised(group), ACTOR).text == "layer (1 sub-exception)"


def test_notes_that_are_no_list_do_no_harm() -> None:
    assert isinstance(arrive(BadNotes("x")), Exception)


def test_text_that_is_not_unicode_arrives_escaped() -> None:
    assert unpack(pack(capture(OSError("file \udcff"), ACTOR))).text == "file \\udcff"


# -- through several processes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ValueError, DeadlineExceeded])
def test_a_second_process_adds_one_line_and_keeps_the_first_note(kind: type[Exception]) -> None:
    inner = arrive(kind("x"))
    outer = arrive(arrive(inner, OUTER), OUTER | {"rank": 1})
    assert type(outer) is kind
    assert outer.__notes__ == [
        *inner.__notes__,
        "from rank 0 of group 'outer' on node00 (pid 77)",
        "from rank 1 of group 'outer' on node00 (pid 77)",
    ]


def test_a_remote_error_passes_through_a_second_process_unchanged() -> None:
    inner = arrive(KeyboardInterrupt("no"))
    outer = arrive(inner, OUTER)
    assert isinstance(inner, RemoteError)
    assert isinstance(outer, RemoteError)
    assert (outer.type_name, outer.remote_traceback) == (inner.type_name, inner.remote_traceback)
    assert str(outer) == str(inner)
    assert len(outer.__notes__) == 2


# -- packing ----------------------------------------------------------------------------------------------------------


@given(
    st.builds(
        Failure,
        type_name=st.text(),
        text=st.text(),
        traceback=st.text(),
        notes=st.lists(st.text(), max_size=64).map(tuple),
        pickled=st.none() | st.binary(),
        when=st.floats(allow_nan=False),
        where=st.dictionaries(st.text(max_size=5), st.integers(0, 9) | st.text(max_size=5), max_size=4),
        relayed=st.booleans(),
    )
)
def test_a_failure_comes_out_as_it_went_in(failure: Failure) -> None:
    assert unpack(pack(failure)) == failure


def test_packing_holds_every_limit() -> None:
    failure = Failure("t" * 1_000_000, "x" * 1_000_000, "y" * 1_000_000, ("ä" * 1_000_000,) * 100, bytes(2 << 20))
    packed = pack(failure)
    again = unpack(packed)
    assert len(packed) < 70 * LIMIT
    assert all(len(text.encode()) <= LIMIT for text in (again.type_name, again.text, again.traceback, *again.notes))
    assert len(again.notes) == 64
    assert again.pickled is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        msgpack.packb(3),
        msgpack.packb({}),
        b"\xdd\xff\xff\xff\xff",
        b"\x91" * 5000,
        pack(Failure("x", "", ""))[:-1],
        pack(Failure("x", "", "")) + b"\0",
        msgpack.packb(msgpack.unpackb(pack(Failure("x", "", ""))) | {"text": b"bytes"}),
        msgpack.packb(msgpack.unpackb(pack(Failure("x", "", ""))) | {"notes": [1]}),
        msgpack.packb(msgpack.unpackb(pack(Failure("x", "", ""))) | {"text": "x" * (LIMIT + 1)}),
    ],
)
def test_bytes_that_are_no_failure_are_refused(data: bytes) -> None:
    with pytest.raises(SerializationError, match="not a failure"):
        unpack(data)


def test_unknown_fields_of_a_newer_version_are_ignored() -> None:
    failure = Failure("x", "y", "z")
    assert unpack(msgpack.packb(msgpack.unpackb(pack(failure)) | {"colour": "red"})) == failure


def test_unpacking_does_not_unpickle() -> None:
    events: list[str] = []
    watching = True  # an audit hook stays for ever
    sys.addaudithook(lambda event, _: events.append(event) if watching and event == "pickle.find_class" else None)
    failure = unpack(pack(capture(raised(ValueError("x")), ACTOR)))
    assert not events
    rebuild(failure)
    watching = False
    assert events


def test_an_error_of_this_process_has_no_time() -> None:
    assert failures.when_of(ValueError("x")) == math.inf
