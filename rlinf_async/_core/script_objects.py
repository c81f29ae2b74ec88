"""Reducers for script objects that neither pickle nor cloudpickle supports: caches, locks, context variables.

Functions of a script travel by value, with the globals to which they refer. These globals may include objects of which
each process must have only one. Such an object is sent with its name. A process whose ``__main__`` has an object of
that name and kind keeps it; any other process creates one. As a result, two functions that arrive separately share a
cache, a lock or a context variable as they do at the sender.
"""

from __future__ import annotations

import contextvars
import dataclasses
import functools
import sys
import threading
import types
import typing
import weakref
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final

from cloudpickle import cloudpickle

from rlinf_async._core import main_module
from rlinf_async._core.main_module import MAIN_NAMES

# Maps each type whose objects arrive empty or unlocked to its constructor.
_FRESH: Final[dict[type, Any]] = {
    type(threading.Lock()): threading.Lock,
    type(threading.RLock()): threading.RLock,
    **{
        kind: kind
        for kind in (
            threading.Condition,
            threading.Event,
            threading.local,
            weakref.WeakKeyDictionary,
            weakref.WeakValueDictionary,
        )
    },
}

_SENTINELS: Final = tuple(type(vars(dataclasses)[name]) for name in ("MISSING", "KW_ONLY", "_HAS_DEFAULT_FACTORY"))

_VARIABLES: Final = (typing.NewType, typing.ParamSpec, typing.TypeVarTuple)


# Maps the id of each context variable, and of each object of a type in ``_FRESH``, to the object, which the entry keeps
# alive, and to the importable module and name under which it was found, if any.
_homes: dict[int, tuple[Any, tuple[ModuleType, str] | None]] = {}


def place_of(obj: Any) -> str | None:
    """Return the name of an object at the top level of a script or in one of its classes; None if there is none."""
    for module in {id(each): each for each in map(sys.modules.get, MAIN_NAMES)}.values():
        for name, value in list(vars(module).items()):
            if value is obj:
                return name
            if isinstance(value, type) and value.__module__ in MAIN_NAMES:
                for inner, item in list(vars(value).items()):
                    if item is obj:
                        return f"{name}.{inner}"
    return None


def definition_of(obj: Any) -> str | None:
    """Return the top-level name of a script function, even a compiled one; None if it has none."""
    if isinstance(obj, type | types.MethodType) or not callable(obj) or getattr(obj, "__name__", None) is None:
        return None
    place = place_of(obj)
    return None if place is None or "." in place else place


def names_in(annotations: dict[str, Any]) -> Iterator[str]:
    for annotation in annotations.values():
        yield from _names_in(annotation)


def travels_by_value(definition: Any) -> bool:
    """True if other processes cannot import a definition by its ``__module__`` and ``__qualname__``."""
    found = cloudpickle._lookup_module_and_qualname(definition)
    return found is None or cloudpickle._is_registered_pickle_by_value(found[0])


def is_dispatcher(function: types.FunctionType) -> bool:
    """True if ``functools.singledispatch`` created the function."""
    return "registry" in function.__dict__ and "dispatch" in function.__dict__


def reduce_dispatcher(function: Any) -> tuple[Any, ...]:
    """Reduce a function of ``functools.singledispatch`` to its implementations."""
    # Implementations for other types may refer to the dispatcher. Because they are the dispatcher's state, they are
    # unpickled only once it exists.
    others = {kind: each for kind, each in function.registry.items() if kind is not object}
    return _make_dispatcher, (place_of(function), function.registry[object]), others, None, None, _add_implementations


@functools.lru_cache(maxsize=4096)
def _names_in_text(text: str) -> tuple[str, ...]:
    try:
        return compile(text, "<annotation>", "eval").co_names
    except (SyntaxError, ValueError):
        return ()


def _names_in(annotation: Any) -> Iterator[str]:
    if type(annotation) is str:
        yield from _names_in_text(annotation)
    elif type(annotation) is typing.ForwardRef:
        yield from _names_in_text(annotation.__forward_arg__)
    else:
        for argument in getattr(annotation, "__args__", ()):
            yield from _names_in(argument)


# -- reducers ---------------------------------------------------------------------------------------------------------


def _reduce_cached(cached: Any) -> Any:
    if not hasattr(cached, "cache_parameters") or not travels_by_value(cached):
        return cached.__reduce__()
    own = {name: value for name, value in vars(cached).items() if name not in ("__wrapped__", "cache_parameters")}
    arguments = place_of(cached), cached.__wrapped__, cached.cache_parameters()
    return _make_cached, arguments, own, None, None, _add_attributes


def _home_of(obj: Any) -> tuple[ModuleType, str] | None:
    if id(obj) not in _homes:
        modules = [each for name, each in sys.modules.copy().items() if name not in MAIN_NAMES]
        found = (
            (module, name)
            for module in modules
            if isinstance(module, ModuleType)
            for name, value in list(vars(module).items())
            if value is obj
        )
        _homes[id(obj)] = obj, next(found, None)
    return _homes[id(obj)][1]


def _reduce_fresh(obj: Any) -> Any:
    place = place_of(obj)
    if place is None:
        return obj.__reduce_ex__(5)
    if home := _home_of(obj):
        return getattr, home
    return _make_fresh, (place, _FRESH[type(obj)])


def _reduce_context_variable(variable: Any) -> Any:
    place = place_of(variable)
    if place is None:
        return variable.__reduce_ex__(5)
    if home := _home_of(variable):
        return getattr, home
    try:
        default = {"default": contextvars.Context().run(variable.get)}
    except LookupError:
        default = {}
    return _make_context_variable, (place, variable.name, default)


def _reduce_type_variable(variable: Any) -> Any:
    if not travels_by_value(variable):
        return variable.__reduce__()
    arguments = (variable.__supertype__,) if type(variable) is typing.NewType else ()
    return _make_type_variable, (place_of(variable), type(variable), variable.__name__, *arguments)


def _reduce_cached_property(cached: Any) -> Any:
    # The default reduction would include the lock that Python 3.11 keeps in a cached_property.
    return functools.cached_property, (cached.func,), {"attrname": cached.attrname, "__doc__": cached.__doc__}


def _by_name_of(kind: type) -> Callable[[Any], Any]:
    names = {id(value): name for name, value in vars(dataclasses).items() if type(value) is kind}
    return lambda sentinel: names[id(sentinel)]


REDUCERS: Final[dict[Any, Callable[[Any], Any]]] = {
    type(functools.lru_cache(len)): _reduce_cached,
    functools.cached_property: _reduce_cached_property,
    contextvars.ContextVar: _reduce_context_variable,
    **dict.fromkeys(_FRESH, _reduce_fresh),
    **dict.fromkeys(_VARIABLES, _reduce_type_variable),
    **{kind: _by_name_of(kind) for kind in _SENTINELS},
}


# -- reconstruction at the receiver -----------------------------------------------------------------------------------


def _settle(place: str | None, made: Any, is_alike: Callable[[Any], bool] = lambda known: True) -> Any:
    """Return the equivalent object of that name in ``__main__``; if there is none, register and return the new one."""
    # An object in a class arrives with the class, which is filled in only once, so it needs no lookup.
    if place is None or "." in place:
        return made
    known = main_module.own(place)
    if type(known) is type(made) and is_alike(known):
        return known
    main = sys.modules["__main__"]
    if type(main) is main_module.MainModule:
        vars(main)[place] = made
    return made


def _make_cached(place: str | None, function: Any, parameters: dict[str, Any]) -> Any:
    made = functools.lru_cache(**parameters)(function)
    code = getattr(function, "__code__", None)
    return _settle(place, made, lambda known: getattr(known.__wrapped__, "__code__", None) == code)


def _make_dispatcher(place: str | None, function: Any) -> Any:
    code = function.__code__

    def is_alike(known: Any) -> bool:
        return is_dispatcher(known) and known.registry[object].__code__ == code

    return _settle(place, functools.singledispatch(function), is_alike)


def _add_implementations(dispatcher: Any, implementations: dict[type, Any]) -> None:
    for kind, function in implementations.items():
        if kind not in dispatcher.registry:
            dispatcher.register(kind, function)


def _add_attributes(obj: Any, attributes: dict[str, Any]) -> None:
    for name, value in attributes.items():
        vars(obj).setdefault(name, value)


def _make_fresh(place: str, make: Callable[[], Any]) -> Any:
    return _settle(place, make())


def _make_context_variable(place: str, name: str, default: dict[str, Any]) -> Any:
    made: Any = contextvars.ContextVar(name, **default)
    return _settle(place, made, lambda known: known.name == name)


def _make_type_variable(place: str | None, kind: Any, name: str, *arguments: Any) -> Any:
    made = kind(name, *arguments)
    made.__module__ = "__main__"
    return _settle(place, made, lambda known: getattr(known, "__supertype__", None) == (arguments or (None,))[0])
