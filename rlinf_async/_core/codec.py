"""Pickle codec: encodes values as heads and uncopied out-of-band buffers; the only caller of ``pickle.loads``.

Unpickling runs arbitrary code: call ``decode`` only on bytes from an authenticated peer.

A *body* is the encoded form of a value (``_core/encoded.py``). Its head is a pickle (protocol 5, with memory out of
band). If an object consists of a single buffer, its head is the byte 2 and a pickle of the key from which it is
rebuilt.
"""

from __future__ import annotations

import copyreg
import importlib
import multiprocessing  # noqa: F401  # importing it registers the main module as __mp_main__
import pickle
import sys
from collections import ChainMap
from collections.abc import Callable, Iterable, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any, ClassVar, Final

import cloudpickle

from rlinf_async._core import definitions, exception_parts, main_module, script_objects
from rlinf_async._core.encoded import COPY_MAX_BYTES, Encoded, OutOfBandBytes, plain_body, split
from rlinf_async._core.unpicklable import ATOMS, cannot_travel, find_guilty, nested_too_deeply, summary
from rlinf_async.errors import SerializationError

if "__mp_main__" in sys.modules:
    # In a child that multiprocessing has spawned, the script's module is __mp_main__, which no other process has. Its
    # definitions must be sent by value, like those of __main__.
    cloudpickle.register_pickle_by_value(ModuleType("__mp_main__"))

_IN_BAND_BYTES: Final = 1024  # smaller buffers go into the pickle: a copy is cheaper than an index entry

_providers: dict[str, str] = {}
_reducing: dict[str, Callable[[Any, dict[Any, Any]], Any]] = {}
_SINGLE_BUFFER_MARK: Final = 2  # first byte of the head of a single-buffer object; a pickle begins with 128
_alone: dict[type, tuple[str, Callable[[Any], tuple[Any, memoryview] | None]]] = {}
_heads: dict[Any, bytes] = {}
_rebuilders: dict[bytes, Callable[[Any], Any]] = {}
_MAX_CACHED_HEADS: Final = 1024

# Key of a predicate in a provider's ``state``: true for objects whose memory must not be copied. The key is absent if
# all memory must be copied.
KEEP: Final = "keep"

# Maps the id of each script function that receivers must look up by name to that name and to the function, which the
# entry keeps alive.
_by_name: dict[int, tuple[str, Any]] = {}
_MAX_NAMES_PER_VALUE: Final = 100

_CONTAINERS: Final = frozenset({tuple, list, dict})
_NOTHING: Final = ()
_NO_ARGUMENTS: Final = Encoded([pickle.dumps(((), {}), 5)])
_NO_ARGUMENTS_BODY: Final = _NO_ARGUMENTS.to_bytes()
_NONE_BODY: Final = plain_body(None)


def encode_plain(value: Any) -> bytes | None:
    """Return the body of a value made of a few builtin types; return None if the value needs ``encode``."""
    if value is None:
        return _NONE_BODY
    kind = type(value)
    if kind in ATOMS or (kind in _CONTAINERS and _is_plain(value, 3)):
        return plain_body(value)
    return None


def encode_arguments(
    args: tuple[Any, ...], kwargs: dict[str, Any], *, describe: str, root: str | tuple[str, ...]
) -> bytes | Encoded:
    if not args and not kwargs:
        return _NO_ARGUMENTS_BODY
    value = (args, kwargs)
    plain = encode_plain(value)
    return encode(value, describe=describe, root=root) if plain is None else plain


def extend(top_level_module: str, provider: str) -> None:
    """Register the module that reduces the types of a package.

    Objects whose type is from ``top_level_module`` are first offered to ``reduce(obj, state)`` of the module named
    ``provider``. The function returns a value like that of ``__reduce__``, or NotImplemented; ``state`` is a dict that
    lives for the duration of one ``encode``. The provider is imported when the first such object is encountered.

    The module may define a type ``ALONE`` and a function ``alone(obj)``. If an object of exactly that type can be
    rebuilt as ``rebuilder(key)(memory)``, ``alone`` returns that key and memory, otherwise None. Each key is thus
    pickled only once.
    """
    _providers[top_level_module] = provider


def encode(
    value: Any,
    *,
    describe: str = "the value",
    root: str | tuple[str, ...] = "value",
    keep: Callable[[Any], bool] | None = None,
) -> Encoded:
    """Encode a value without copying the large memory blocks in it.

    Functions and classes of ``__main__`` travel by value, and so do their instances. When an instance of one of this
    process's own classes comes back, it has the original class. A compiled function of ``__main__`` travels by name if
    receivers may import the script. Read-only memory stays read-only.

    Args:
        value: anything that pickle or cloudpickle accepts, with tensors if a provider is registered for them.
        describe: description of the value for errors, such as ``"argument of step()"``.
        root: start of each path in errors. A tuple gives the names of a tuple's items: ``("args", "kwargs")``.
        keep: predicate on objects whose types have a registered provider; true if the object's memory must stay on its
            device instead of being copied to the CPU.

    Raises:
        SerializationError: part of the value cannot be pickled; the text names the part and its path.
    """
    if type(value) is tuple and len(value) == 2 and value[0] is _NOTHING and type(value[1]) is dict and not value[1]:
        return _NO_ARGUMENTS
    if (type(value) in ATOMS or type(value) in _CONTAINERS) and _is_plain(value, 3):
        return Encoded((pickle.dumps(value, 5),))
    chunks: list[bytes] = []
    try:
        quick = _encode_quickly(value, keep)
        if quick is not None:
            return quick
        pickler = _Pickler(chunks.append, keep)
        pickler.dump(value)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        return _encode_otherwise(value, describe, root, keep, error)
    return Encoded(chunks, pickler.buffers)


def _encode_otherwise(
    value: Any, describe: str, root: str | tuple[str, ...], keep: Callable[[Any], bool] | None, error: BaseException
) -> Encoded:
    """Encode a value after a failed attempt: omit names in annotations, and send compiled script functions by name."""
    if too_deep := nested_too_deeply(describe, root, error):
        raise too_deep from error
    for _ in range(_MAX_NAMES_PER_VALUE):
        chunks: list[bytes] = []
        pickler = _Pickler(chunks.append, keep, with_annotations=False)
        try:
            pickler.dump(value)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as again:
            error = again
        else:
            return Encoded(chunks, pickler.buffers)
        guilty = find_guilty(value, root, lambda: _Pickler(_discard, with_annotations=False))
        part, name = _definition_among([(guilty.part, ""), *guilty.holders])
        if name is None:
            break
        if why := main_module.why_not():
            fix = f"it is part of {name}() of the script, which workers would import; but {why}"
            raise cannot_travel(describe, root, error, guilty, fix) from error
        _by_name[id(part)] = name, part
    raise cannot_travel(describe, root, error, guilty) from error


def _definition_among(holders: Iterable[tuple[Any, str]]) -> tuple[Any, str | None]:
    """Return the innermost script function that contains the failing part, with its name; (None, None) if none does."""
    for part, step in holders:
        # The fault is in a global itself, not in the function that refers to it: when imported, the script may bind
        # that name to another object.
        if step.startswith(".__globals__") and part.__module__ in main_module.MAIN_NAMES:
            break
        if name := script_objects.definition_of(part):
            return part, name
    return None, None


def decode(body: bytes | bytearray | memoryview) -> Any:
    """Return the value of a body; SerializationError if it is malformed or its value cannot be rebuilt here.

    A writable body is taken over for good: arrays and tensors of 64 KiB or more are views of it. Everything else is
    copied, so memory is read-only here only if it was read-only at the sender.
    """
    try:
        if body[0] == 0:
            return None if body == _NONE_BODY else pickle.loads(memoryview(body)[1:])
        head, buffers = split(memoryview(body))
        return _load(head, buffers)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise _cannot_be_rebuilt(error) from error


def decode_arguments(body: bytes | bytearray | memoryview) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments that ``encode_arguments`` encoded. Raises like ``decode``."""
    if body == _NO_ARGUMENTS_BODY:
        return (), {}
    args, kwargs = decode(body)
    return args, kwargs


def decode_parts(head: bytes | memoryview, buffers: Sequence[memoryview]) -> Any:
    """Decode a head and buffers that arrived separately. Takes over the buffers; raises like ``decode``."""
    try:
        kept = [bytearray(view) if view.nbytes < COPY_MAX_BYTES or view.readonly else view for view in buffers]
        return _load(head, kept)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise _cannot_be_rebuilt(error) from error


def decode_among(body: bytes | bytearray | memoryview, elsewhere: Iterable[tuple[int, Any]]) -> Any:
    """Decode a body, some of whose buffers arrived separately.

    Args:
        elsewhere: the index and the content of each such buffer, in ascending order.

    Raises:
        SerializationError: see ``decode``.
    """
    try:
        view = memoryview(body)
        head, buffers = (view[1:], []) if view[0] == 0 else split(view)
        for place, memory in elsewhere:
            buffers.insert(place, memory)
        return _load(head, buffers)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise _cannot_be_rebuilt(error) from error


def _is_plain(value: Any, depth: int) -> bool:
    """True if a quick check finds nothing but builtin values."""
    kind = type(value)
    if kind in ATOMS:
        return True
    if not depth:
        return False
    if kind is tuple or kind is list:
        items = value
    elif kind is dict:
        items = value.values()
        for key in value:
            if type(key) not in ATOMS:
                return False
    else:
        return False
    if len(value) > 64:
        return False
    for item in items:  # noqa: SIM110 (a generator costs half a microsecond)
        if type(item) not in ATOMS and not _is_plain(item, depth - 1):
            return False
    return True


# -- the pickler ----------------------------------------------------------------------------------------------------


class _Sink:
    """File-like object for a pickler that passes on bytes objects of any size without a copy."""

    __slots__ = ("write",)

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self.write = write


class _OutOfBand:
    """Collector of the memory that a pickler leaves out of its pickle."""

    def __init__(self) -> None:
        self.buffers: list[memoryview] = []

    def take(self, buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if view.nbytes < _IN_BAND_BYTES:
            if type(view.obj) is not OutOfBandBytes:
                return True
            view = view.obj.memory
        self.buffers.append(view)
        return False


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    dispatch_table: ClassVar[ChainMap[Any, Any]] = ChainMap(
        {**cloudpickle.Pickler._dispatch_table, **script_objects.REDUCERS}, copyreg.dispatch_table
    )

    def __init__(
        self,
        write: Callable[[bytes], object],
        keep: Callable[[Any], bool] | None = None,
        *,
        with_annotations: bool = True,
    ) -> None:
        memory = _OutOfBand()
        super().__init__(_Sink(write), protocol=5, buffer_callback=memory.take)
        self.buffers = memory.buffers
        self._reducers: dict[type, Callable[[Any, dict[Any, Any]], Any] | None] = {}
        self._state: dict[Any, Any] = {KEEP: keep} if keep else {}
        self._with_annotations = with_annotations

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        try:
            reduce = self._reducers[kind]
        except KeyError:
            reduce = exception_parts.reduce if issubclass(kind, BaseException) else _find_reducer(kind)
            if _by_name and any(type(each) is kind for _, each in _by_name.values()):
                reduce = _reduce_by_name
            self._reducers[kind] = reduce
        if reduce is not None:
            reduced = reduce(obj, self._state)
            if reduced is not NotImplemented:
                return reduced
        if kind is FunctionType and obj.__module__ in _reducing:
            # A provider module's own functions travel by name; cloudpickle would reach the same decision, but only
            # after a long search.
            return NotImplemented
        if kind is CodeType:
            # cloudpickle 3.1.3 omits the file name, which errors and verdicts must show.
            return _code_of_file, (obj.co_filename, *self.dispatch_table[CodeType](obj))
        reduced = super().reducer_override(obj)
        if reduced is NotImplemented or len(reduced) != 6:
            return reduced
        if kind is FunctionType:
            return definitions.reduce_function(obj, reduced, self._with_annotations)
        return definitions.reduce_class(obj, reduced, self._with_annotations) if isinstance(obj, type) else reduced


def _reduce_by_name(obj: Any, state: dict[Any, Any]) -> Any:
    known = _by_name.get(id(obj))
    return NotImplemented if known is None else (main_module.resolve, (known[0],))


def _code_of_file(file: str, make: Callable[..., CodeType], arguments: tuple[Any, ...]) -> CodeType:
    return make(*arguments).replace(co_filename=file)


class _NotSimpleError(Exception):
    """The object needs the full pickler, because its provider does not reduce it."""


class _QuickPickler(pickle.Pickler):
    """Pickler for builtin values and for one type that has a provider; it makes no Python calls for builtin values."""

    def __init__(self, write: Callable[[bytes], object], kind: type, keep: Callable[[Any], bool] | None) -> None:
        # The pickler reads ``dispatch_table`` only once, in ``super().__init__`` below, so set it first.
        self.dispatch_table = {kind: self._reduce}
        memory = _OutOfBand()
        super().__init__(_Sink(write), protocol=5, buffer_callback=memory.take)
        self.buffers = memory.buffers
        self._provider = _find_reducer(kind)
        self._state: dict[Any, Any] = {KEEP: keep} if keep else {}

    def _reduce(self, obj: Any) -> Any:
        reduced = NotImplemented if self._provider is None else self._provider(obj, self._state)
        if reduced is NotImplemented:
            raise _NotSimpleError
        return reduced


def _encode_quickly(value: Any, keep: Callable[[Any], bool] | None) -> Encoded | None:
    """Encode objects of a single type that has a provider, alone or in builtin containers; return None otherwise."""
    known = _alone.get(type(value))
    if known is not None and (keep is None or not keep(value)):
        provider, alone = known
        made = alone(value)
        if made is not None:
            return Encoded((_head_of(provider, made[0]),), (made[1],))
    kinds: set[type] = set()
    if not _is_plain_but_for(kinds, value, 3) or len(kinds) != 1:
        return None
    chunks: list[bytes] = []
    pickler = _QuickPickler(chunks.append, kinds.pop(), keep)
    try:
        pickler.dump(value)
    except _NotSimpleError:
        return None
    return Encoded(chunks, pickler.buffers)


def _head_of(provider: str, key: Any) -> bytes:
    head = _heads.get((provider, key))
    if head is None:
        if len(_heads) >= _MAX_CACHED_HEADS:
            _heads.clear()
        head = _heads[provider, key] = bytes((_SINGLE_BUFFER_MARK,)) + pickle.dumps((provider, key), 5)
    return head


def _load(head: bytes | memoryview, buffers: Sequence[Any]) -> Any:
    if head[0] != _SINGLE_BUFFER_MARK:
        return pickle.loads(head, buffers=buffers)
    known = bytes(head)
    rebuild = _rebuilders.get(known)
    if rebuild is None:
        provider, key = pickle.loads(known[1:])
        if provider not in _providers.values():
            raise ValueError(f"{provider!r} is no provider here")
        if len(_rebuilders) >= _MAX_CACHED_HEADS:
            _rebuilders.clear()
        rebuild = _rebuilders[known] = importlib.import_module(provider).rebuilder(key)
    (memory,) = buffers
    return rebuild(memory)


def _is_plain_but_for(kinds: set[type], value: Any, depth: int) -> bool:
    """True if a value contains only builtin values and objects whose types have providers; adds these to ``kinds``."""
    kind = type(value)
    if kind in ATOMS or kind in kinds:
        return True
    if kind is tuple or kind is list:
        items = value
    elif kind is dict:
        items = (*value, *value.values())
    else:
        kinds.add(kind)
        return _find_reducer(kind) is not None
    if not depth or (len(items) > 64 and type(items[-1]) in ATOMS):
        # For a deep or long value, the full pickler is as fast as continuing the search.
        return False
    return all(_is_plain_but_for(kinds, item, depth - 1) for item in items)


def _discard(_: bytes) -> None:
    pass


def _find_reducer(kind: type) -> Callable[[Any, dict[Any, Any]], Any] | None:
    module = getattr(kind, "__module__", None)
    provider = _providers.get(module.partition(".")[0]) if isinstance(module, str) else None
    if provider is None:
        return None
    reduce = _reducing.get(provider)
    if reduce is None:
        imported = importlib.import_module(provider)
        reduce = _reducing[provider] = imported.reduce
        # No other type of such a package (torch.Size, torch.dtype, modules, distributions) has memory to be sent
        # out of band. tests/test_values.py::test_every_kind_of_value_travels_twice_by_every_way
        if hasattr(imported, "ALONE"):
            _alone[imported.ALONE] = provider, imported.alone
    return reduce


# -- errors ---------------------------------------------------------------------------------------------------------


def _cannot_be_rebuilt(error: BaseException) -> SerializationError:
    if unknown := main_module.explain(error):
        return SerializationError(f"what arrived cannot be rebuilt: {unknown}; a module of its own could be imported")
    if isinstance(error, ModuleNotFoundError) and error.name:
        reason = f"there is no module {error.name!r} on this side"
    elif isinstance(error, ImportError):
        reason = f"a module cannot be imported on this side ({summary(error)})"
    elif isinstance(error, AttributeError) and str(error).startswith("Can't get attribute"):
        reason = f"this side has another version of a module ({error})"
    else:
        return SerializationError(f"what arrived cannot be rebuilt: {summary(error)}")
    return SerializationError(
        f"what arrived cannot be rebuilt: {reason}; what the driver's script defines travels by itself, everything "
        f"else must be importable on every node (sys.path here is {sys.path})"
    )
