"""Exceptions across processes: captured as text and pickle (``Failure``), packed, and rebuilt at the caller.

The process that raises an exception captures it as text, which always travels, and as parts, each pickled separately.
The caller rebuilds the original type, so that ``except ValueError`` works; a note names the parts that cannot travel.
If the class itself cannot travel, the caller gets a ``RemoteError`` with the same text.
"""

from __future__ import annotations

import math
import os
import platform
import textwrap
import time
import traceback
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgpack

from rlinf_async._core import codec, exception_parts
from rlinf_async.errors import ConfigError, RemoteError, SerializationError

# If a text is longer than this, its middle is cut out.
_MAX_TEXT_CHARS: Final = 64 * 1024

_MAX_NOTES: Final = 64
_MAX_PICKLE_BYTES: Final = 1024 * 1024
# Maximum number of causes, contexts and group members in a traceback; a longer chain is omitted entirely.
_MAX_CHAIN: Final = 64

# Maximum total size of the parts of an exception, its causes and its members; their texts may use the rest.
_MAX_PARTS_BYTES: Final = _MAX_PICKLE_BYTES * 3 // 4
_MAX_NESTED: Final = 16

# Attribute of a rebuilt exception: seconds since the epoch at capture. It marks an exception from another process.
_WHEN: Final = "_rlinf_when"


@dataclass(frozen=True)
class Failure:
    """An exception as it travels between processes.

    Attributes:
        type_name: qualified name of its type, without a module for builtins.
        text: its ``str()``.
        traceback: the traceback, formatted in the raising process, with causes and contexts.
        notes: its notes.
        pickled: the exception in parts; None if it cannot travel or must not be raised as itself in another process.
        when: time of capture on the machine's clock, in seconds since the epoch.
        where: ``group``, ``rank``, ``node`` and ``pid`` of the worker.
        relayed: True if the exception came from yet another process, which its notes name.
    """

    type_name: str
    text: str
    traceback: str
    notes: Sequence[str] = ()
    pickled: bytes | None = None
    when: float = 0.0
    where: Mapping[str, Any] = field(default_factory=dict)
    relayed: bool = False


_FIELDS: Final[dict[str, Any]] = {
    "type_name": str,
    "text": str,
    "traceback": str,
    "notes": list,
    "pickled": bytes | None,
    "when": float,
    "where": dict,
    "relayed": bool,
}


def capture(exception: BaseException, where: Mapping[str, Any]) -> Failure:
    """Return the exception as a failure of the worker ``where``. Never raises, even if the exception's methods do."""
    type_name = type_name_of(type(exception))
    text = text_of(exception)
    return Failure(
        type_name=type_name,
        text=text,
        traceback=_format(exception, type_name, text),
        notes=_notes_of(exception),
        pickled=_Sender().take_apart(exception) if _is_raisable(exception) else None,
        when=time.time(),
        where=dict(where),
        relayed=when_of(exception) < math.inf,
    )


def pack(failure: Failure) -> bytes:
    facts = {name: getattr(failure, name) for name in _FIELDS}
    for name in ("type_name", "text", "traceback"):
        facts[name] = _cut(facts[name])
    facts["notes"] = [_cut(note) for note in failure.notes[:_MAX_NOTES]]
    if failure.pickled is not None and len(failure.pickled) > _MAX_PICKLE_BYTES:
        facts["pickled"] = None
    packed: bytes = msgpack.packb(facts)
    return packed


def unpack(data: bytes | memoryview) -> Failure:
    """Return a failure packed by ``pack``, without unpickling anything; SerializationError for malformed bytes."""
    try:
        facts = msgpack.unpackb(
            data,
            max_str_len=_MAX_TEXT_CHARS,
            max_bin_len=_MAX_PICKLE_BYTES,
            max_array_len=_MAX_NOTES,
            max_map_len=64,
            max_ext_len=0,
        )
        for name, kind in _FIELDS.items():
            if not isinstance(facts[name], kind):
                raise TypeError(f"its {name} is of type {type(facts[name]).__name__}")
        if not all(isinstance(note, str) for note in facts["notes"]):
            raise TypeError("a note is no text")
    except Exception as error:
        raise SerializationError(f"not a failure: {type(error).__name__}: {error}") from error
    return Failure(**{**{name: facts[name] for name in _FIELDS}, "notes": tuple(facts["notes"])})


def rebuild(failure: Failure) -> Exception:
    """Return the exception, with its own type if that can be loaded here, else as a ``RemoteError``.

    A note names the worker that raised the exception and includes the traceback from there. An exception that passes
    through several processes keeps the first of these notes, and each further process adds a line.

    This unpickles data: call it only for failures from authenticated peers.
    """
    error = _rebuild(failure)
    if not _is_raisable(error):
        error = _rebuild(replace(failure, pickled=None))
    if (origin := origin_of(failure)) not in _notes_of(error):
        add_note(error, origin)
    vars(error)[_WHEN] = failure.when
    assert isinstance(error, Exception)
    return error


def pack_error(error: BaseException) -> bytes:
    return pack(capture(error, {"node": platform.node(), "pid": os.getpid()}))


def unpack_error(packed: bytes) -> Exception:
    return rebuild(unpack(packed))


def origin_of(failure: Failure) -> str:
    """Return the note that names the failing worker, with the traceback unless the worker only relayed the failure."""
    place = _describe(failure.where)
    return place if failure.relayed else f"\n{place}\n{textwrap.indent(failure.traceback.rstrip(), '    ')}"


def identity_of(failure: Failure) -> str:
    return f"{failure.where.get('node')}:{failure.where.get('pid')}:{failure.when!r}"


# -- in parts -----------------------------------------------------------------------------------------------------


class _Sender:
    """Takes an exception apart, including its causes and members, within ``_MAX_PARTS_BYTES``."""

    def __init__(self) -> None:
        self._left = _MAX_PARTS_BYTES
        # The chain of exceptions down to the current one; a cause that is already in the chain ends it.
        self._above: list[BaseException] = []

    def take_apart(self, exception: BaseException) -> bytes | None:
        """Return the parts, or None if not even the class can travel."""
        missing: list[str] = []
        parts: dict[str, Any] = {"missing": missing}
        self._above.append(exception)
        try:
            arguments, attributes = exception_parts.parts_of(exception)
            attributes.pop("__notes__", None)  # notes travel as text
            parts["class"] = self._encode(type(exception), "the class")
            if isinstance(exception, BaseExceptionGroup):
                parts["members"] = [self._nested(member) for member in arguments[1]]
                arguments = arguments[:1]
            if exception_parts.pickles_itself(type(exception)):
                parts["own"] = self._try_to_encode(exception, "the exception", [])
            parts["arguments"] = self._try_to_encode(arguments, "args", missing)
            encoded = {name: self._try_to_encode(value, name, missing) for name, value in attributes.items()}
            parts["attributes"] = {name: body for name, body in encoded.items() if body is not None}
            cause = exception.__cause__
            if cause is not None and len(self._above) < _MAX_NESTED and all(cause is not each for each in self._above):
                parts["cause"] = self._nested(cause)
            packed: bytes = msgpack.packb(parts)
            return packed
        except Exception:
            return None
        finally:
            self._above.pop()

    def _nested(self, exception: BaseException) -> bytes:
        type_name, text = type_name_of(type(exception)), text_of(exception)
        apart = self.take_apart(exception) if len(self._above) < _MAX_NESTED else None
        # If the exception could be taken apart, the outer traceback already includes its own.
        told = "" if apart else _format(exception, type_name, text)
        return pack(Failure(type_name, text, told, _notes_of(exception), apart))

    def _try_to_encode(self, value: Any, name: str, missing: list[str]) -> bytes | None:
        try:
            return self._encode(value, name)
        except SerializationError as error:
            missing.append(_cut(str(error)))
            return None

    def _encode(self, value: Any, name: str) -> bytes:
        try:
            encoded = codec.encode(value, describe=f"'{name}'", root=name)
        except SerializationError:
            raise
        except BaseException as error:  # a SystemExit raised in __reduce__ must not end this process
            raise SerializationError(f"'{name}' cannot travel: {type_name_of(type(error))}") from error
        if encoded.nbytes > self._left:
            raise SerializationError(
                f"'{name}' cannot travel: it has {encoded.nbytes} bytes, and an exception may hold {_MAX_PARTS_BYTES}"
            )
        self._left -= encoded.nbytes
        return encoded.to_bytes()


def _rebuild(failure: Failure) -> BaseException:
    """Return the exception with its original notes, or a ``RemoteError``."""
    notes = list(failure.notes)
    error: BaseException | None = None
    if failure.pickled is not None:
        try:
            parts = msgpack.unpackb(failure.pickled)
            error = _by_its_own_method(parts)
            if error is None:
                error, missing = _put_together(parts, failure.text)
                if missing:
                    notes.append("\n    ".join(("left behind in the other process, and missing here:", *missing)))
            if "cause" in parts:
                exception_parts.set_cause(error, _rebuild(unpack(parts["cause"])))
        # The class is missing here, its module exits when it is imported, or it creates a malformed exception.
        except (Exception, SystemExit):
            error = None
    if error is None:
        error = RemoteError.from_facts(failure.type_name, failure.text, failure.traceback)
    here = _notes_of(error)
    for note in notes:
        if note not in here:
            add_note(error, note)
    return error


def _by_its_own_method(parts: Mapping[str, Any]) -> BaseException | None:
    try:
        error = codec.decode(parts["own"]) if parts.get("own") else None
    except SerializationError:
        return None
    return error if isinstance(error, BaseException) else None


def _put_together(parts: Mapping[str, Any], text: str) -> tuple[BaseException, Sequence[str]]:
    missing: list[str] = list(parts["missing"])

    def load(name: str, body: bytes | None, default: Any) -> Any:
        try:
            return default if body is None else codec.decode(body)
        except SerializationError as error:
            missing.append(f"'{name}': {error}")
            return default

    kind = codec.decode(parts["class"])
    arguments = load("args", parts["arguments"], (text,))
    if "members" in parts:
        arguments = (*arguments, [_rebuild(unpack(member)) for member in parts["members"]])
    attributes = {name: load(name, body, _MISSING) for name, body in parts["attributes"].items()}
    attributes = {name: value for name, value in attributes.items() if value is not _MISSING}
    error = exception_parts.restore(exception_parts.make(kind, *arguments), (arguments, attributes))
    if missing and text_of(error) != text:
        # The error's __str__ may read a missing attribute. Logging the error must not fail, and ``except`` must still
        # match its type, so give it a subclass that returns the original text.
        facts = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__str__": lambda _: text}
        kind = type(kind.__name__, (kind,), facts)
        error = exception_parts.restore(exception_parts.make(kind, *arguments), (arguments, attributes))
    return error, missing


_MISSING: Final = object()


# -- inspecting an exception whose own methods may fail ------------------------------------------------------------


def type_name_of(kind: type) -> str:
    try:
        name = str(kind.__qualname__) if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        return _cut(name)
    except BaseException:
        return "an exception without a name"


def text_of(exception: BaseException) -> str:
    """Return ``str()`` of an exception, or a text that says how ``str()`` failed."""
    try:
        return _cut(str(exception))
    except BaseException as error:
        return f"<its str() fails with {type_name_of(type(error))}>"


def _notes_of(exception: BaseException) -> tuple[str, ...]:
    try:
        return tuple(_cut(note) for note in exception.__notes__[:_MAX_NOTES] if isinstance(note, str))
    except BaseException:
        return ()


def when_of(exception: BaseException) -> float:
    """Return when an exception was captured, in epoch seconds; infinity if it was not raised in another process."""
    try:
        return float(vars(exception)[_WHEN])
    except BaseException:
        return math.inf


def _is_raisable(exception: Any) -> bool:
    """True if an exception may be raised as itself in another process.

    Exits and cancellations concern only the process, thread or task in which they are raised. A coroutine must not
    raise StopIteration or StopAsyncIteration.
    """
    return isinstance(exception, Exception) and not isinstance(exception, StopIteration | StopAsyncIteration)


def add_note(error: Exception | BaseException, note: str) -> None:
    try:
        BaseException.add_note(error, note)
    except Exception:  # the error's __notes__ is not a list, or its class is a frozen dataclass
        vars(error)["__notes__"] = [note]


def _describe(where: Mapping[str, Any]) -> str:
    host = f"{where.get('node', 'another machine')} (pid {where.get('pid', '?')})"
    if not where.get("group"):
        return f"from a process on {host}"
    return f"from rank {where.get('rank')} of group '{where['group']}' on {host}"


def _format(exception: BaseException, type_name: str, text: str) -> str:
    raising = [frame for frame, _ in traceback.walk_tb(exception.__traceback__)][-1:]
    if isinstance(exception, ConfigError) and all(map(_is_frameworks, raising)):
        # The framework's own ConfigError names the file, line, key and fix. A user's ConfigError may be caused by the
        # user's code, so its traceback is needed.
        return _cut(f"{type_name}: {text}\n  at {users_line(exception.__traceback__)}")
    try:
        frames = _users_frames(exception.__traceback__)
        if _has_long_chain(exception):
            left_out = f"(more than {_MAX_CHAIN} causes and contexts, left out)"
            lines = [*traceback.format_tb(frames), f"{type_name}: {text}\n", left_out]
        else:
            lines = list(traceback.TracebackException(type(exception), exception, frames, compact=True).format())
        return _cut("".join(lines))
    except BaseException:
        return f"{type_name}: {text}"


def users_line(frames: types.TracebackType | None) -> str:
    place = "no line of the user's"
    for frame, line in traceback.walk_tb(frames):
        if not _is_frameworks(frame):
            place = f"{frame.f_code.co_filename}:{line}"
    return place


def _is_frameworks(frame: types.FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith("rlinf_async.")


def _users_frames(frames: types.TracebackType | None) -> types.TracebackType | None:
    inner = frames
    while inner is not None and _is_frameworks(inner.tb_frame):
        inner = inner.tb_next
    return inner or frames


def _has_long_chain(exception: BaseException) -> bool:
    queue = [exception]
    seen: set[int] = set()
    for link in queue:
        if len(seen) == _MAX_CHAIN or len(queue) > 4 * _MAX_CHAIN:
            return True
        if id(link) in seen:
            continue
        seen.add(id(link))
        if link.__cause__ is not None:
            queue.append(link.__cause__)
        elif link.__context__ is not None and not link.__suppress_context__:
            queue.append(link.__context__)
        if isinstance(link, BaseExceptionGroup):
            queue.extend(link.exceptions)
    return False


def _cut(text: str) -> str:
    """Shorten a text to 64 KiB of UTF-8, and escape characters that cannot be encoded."""
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= _MAX_TEXT_CHARS:
        return data.decode()
    half = _MAX_TEXT_CHARS // 2 - 64
    head, tail = data[:half].decode("utf-8", "ignore"), data[-half:].decode("utf-8", "ignore")
    return f"{head}\n... {len(data) - 2 * half} bytes are left out ...\n{tail}"
