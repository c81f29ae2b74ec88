"""Exceptions as parts (arguments and attributes), from which they are rebuilt without calling their constructor.

An exception's pickle calls the class with ``args``, which is right only if the constructor passes on its arguments
unchanged. Unpickling fails for ``QuotaError("chat", retry_after=3)``, and ``NoSuchEnv("walker")``, whose ``args`` hold
the finished text, turns into "no environment 'no environment 'walker''". These functions run no code of the class::

    copy = restore(make(type(error), *arguments), (arguments, attributes))
"""

from __future__ import annotations

import copyreg
import types
from typing import Any, Final

Parts = tuple[tuple[Any, ...], dict[str, Any]]  # positional arguments, and attributes by name

_LEFT_OUT: Final = (
    BaseException.__suppress_context__,
    AttributeError.obj,  # may refer to a whole model; pickles of the error omit it, too
    BaseExceptionGroup.message,
    BaseExceptionGroup.exceptions,
)
_PICKLING: Final = (
    *("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__getnewargs__", "__getnewargs_ex__"),
)
_IS_HEAP_TYPE: Final = 1 << 9  # flag of a class made by a ``class`` statement (``Py_TPFLAGS_HEAPTYPE``)


def parts_of(error: BaseException) -> Parts:
    """Return the arguments and attributes, including those in slots of Python or C classes."""
    arguments = _read(BaseException.args, error)
    if isinstance(error, BaseExceptionGroup):
        arguments = (_read(BaseExceptionGroup.message, error), [*_read(BaseExceptionGroup.exceptions, error)])
    attributes = dict(vars(error))
    for name, member in _members_of(type(error)).items():
        try:
            value = _read(member, error)
        except AttributeError:
            continue  # the slot is empty
        # An empty C slot reads as None. If that None were restored in an OSError, the error would print as "[Errno 5]
        # Input/output error: None".
        if value is not None or member.__objclass__.__flags__ & _IS_HEAP_TYPE:
            attributes[name] = value
    return arguments, attributes


def is_of_an_extension(kind: type[BaseException]) -> bool:
    return bool(_allocator_of(kind).__module__ != "builtins")


def make(kind: type[BaseException], *arguments: Any) -> BaseException:
    """Allocate an exception of exactly this class, with the builtin ``__new__`` that the class inherits."""
    base = _allocator_of(kind)
    error: BaseException = base.__new__(kind, *arguments)
    # OSError(2, "...") creates a FileNotFoundError.
    return error if type(error) is kind else base.__new__(kind)


def restore(error: BaseException, parts: Parts) -> BaseException:
    """Set the arguments and attributes of an exception from ``make``, bypassing the setters of its class."""
    arguments, attributes = parts
    BaseException.args.__set__(error, arguments)  # type: ignore[attr-defined]  # a descriptor
    members = _members_of(type(error))
    for name, value in attributes.items():
        if name in members:
            members[name].__set__(error, value)
        else:
            vars(error)[name] = value
    return error


def set_cause(error: BaseException, cause: BaseException | None, hides_context: bool = True) -> None:
    """Set the cause, bypassing the ``__setattr__`` of the class, because a frozen dataclass would refuse."""
    BaseException.__setattr__(error, "__cause__", cause)
    BaseException.__setattr__(error, "__suppress_context__", hides_context)


def pickles_itself(kind: type[BaseException]) -> bool:
    """True if a class, its extension base, or ``copyreg`` defines how its objects are pickled."""
    builtin: Any = kind
    while builtin.__flags__ & _IS_HEAP_TYPE:
        builtin = builtin.__base__
    own = any(getattr(kind, name, None) is not getattr(builtin, name, None) for name in _PICKLING)
    return own or kind in copyreg.dispatch_table or is_of_an_extension(kind)


def reduce(error: BaseException, _: Any) -> Any:
    """Return the parts as ``__reduce__`` would, or NotImplemented if the class pickles itself."""
    if pickles_itself(type(error)):
        return NotImplemented
    parts = parts_of(error)
    return make, (type(error), *parts[0]), parts, None, None, restore


def _allocator_of(kind: type[BaseException]) -> Any:
    base: Any = kind
    while not isinstance(vars(base).get("__new__"), types.BuiltinFunctionType):
        base = base.__base__
    return base


def _members_of(kind: type[BaseException]) -> dict[str, types.MemberDescriptorType]:
    return {
        name: found
        for each in reversed(kind.__mro__)
        for name, found in vars(each).items()
        if isinstance(found, types.MemberDescriptorType) and found not in _LEFT_OUT
    }


def _read(member: Any, error: BaseException) -> Any:
    return member.__get__(error)
