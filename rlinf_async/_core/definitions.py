"""Functions and classes by value: cloudpickle's reduction, and their names in the receiver's ``__main__``.

Objects that annotations name as text travel along (``inner: "Inner"``), because ``typing.get_type_hints`` looks them up
in the function's globals, or in the module of the class.

A class is one object per process, as in cloudpickle.  So is a function that refers only to definitions and constants,
because pickling by reference requires the very object that bears the name.  Any other function arrives as a new object
each time, with the globals that it has at its sender by then.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, Final
from weakref import WeakSet

from cloudpickle import cloudpickle

from rlinf_async._core import class_history, main_module, script_objects
from rlinf_async._core.main_module import MAIN_NAMES
from rlinf_async._core.unpicklable import ATOMS

Reduced = tuple[Any, ...]
"""Function, arguments, state, None, None and setter of the state, as ``__reduce__`` returns them."""

_IMPORTED: Final = type | ModuleType | BuiltinFunctionType | FunctionType

_complete: WeakSet[FunctionType] = WeakSet()
"""Functions that have arrived complete, and that a later arrival may reuse."""


def reduce_function(function: FunctionType, reduced: Reduced, with_annotations: bool) -> Reduced:
    if script_objects.is_dispatcher(function):
        return script_objects.reduce_dispatcher(function)
    if function.__module__ not in MAIN_NAMES:
        return reduced
    make, arguments, state, _, _, set_state = reduced
    space = function.__globals__
    if with_annotations:
        used = state[1]["__globals__"]
        used |= {each: space[each] for each in script_objects.names_in(function.__annotations__) if each in space}
    name = function.__qualname__
    if "." in name or main_module.own(name) is not function:
        return reduced
    constants: dict[str, Any] = {}
    if _find_constants(function, constants, set()):
        make, arguments = _find_or_make_function, (name, constants, make, arguments)
    return make, arguments, (set_state, state), None, None, _complete_function


def _find_constants(function: FunctionType, constants: dict[str, Any], seen: set[FunctionType]) -> bool:
    """Collect code and globals of a function and of the functions that it calls; False if one refers to another object.
    Collect code and globals of a function and of the functions that it calls; False if one refers to another object."""
    seen.add(function)
    if function.__closure__ or function.__dict__ or function.__kwdefaults__:
        return False
    if not all(type(value) in ATOMS for value in function.__defaults__ or ()):
        return False
    constants[f"{function.__qualname__}()"] = function.__code__, function.__defaults__
    for name in cloudpickle._extract_code_globals(function.__code__):
        value = function.__globals__.get(name, ATOMS)
        constant: tuple[Any, Any]
        if type(value) is FunctionType and value.__module__ in MAIN_NAMES:
            if value not in seen and not _find_constants(value, constants, seen):
                return False
            continue
        if type(value) in ATOMS:
            constant = type(value).__name__, value
        elif isinstance(value, type) and script_objects.travels_by_value(value):
            constant = "class", cloudpickle._get_or_create_tracker_id(value)  # a notebook may define it anew
        elif isinstance(value, _IMPORTED):
            constant = getattr(value, "__module__", None), value.__name__
        elif value is ATOMS:  # the name of a builtin
            continue
        else:
            return False
        # Functions that have arrived at different times may have different values of a name.
        if constants.setdefault(name, constant) != constant:
            return False
    return True


def _find_or_make_function(
    name: str, constants: dict[str, Any], make: Callable[..., FunctionType], arguments: tuple[Any, ...]
) -> FunctionType:
    """Return the function that arrived before if its constants are unchanged, else a new one."""
    known = main_module.own(name)
    if type(known) is FunctionType and known in _complete:
        known_constants: dict[str, Any] = {}
        if _find_constants(known, known_constants, set()) and known_constants == constants:
            return known
    return make(*arguments)


def reduce_class(kind: type, reduced: Reduced, with_annotations: bool) -> Reduced:
    make, arguments, state, _, _, set_state = reduced
    space = vars(sys.modules[kind.__module__]) if kind.__module__ in MAIN_NAMES else {}
    root, _, inner = kind.__qualname__.partition(".")
    others = {}
    if root in space:
        wanted = [*script_objects.names_in(vars(kind).get("__annotations__", {}))]
        if inner:  # pickling an inner class by reference begins at the outer one
            wanted.append(root)
        if with_annotations:
            others = {name: space[name] for name in wanted if name in space}
    if issubclass(kind, enum.Enum):  # cloudpickle 3.1.3 leaves aliases out of the members
        members = {name: member.value for name, member in kind.__members__.items()}
        arguments = *arguments[:3], members, *arguments[4:]
        for name in members:
            state[0].pop(name, None)
    state[0]["__qualname__"] = kind.__qualname__  # and this everywhere
    state = set_state, state, class_history.changes_of(kind, state[0]), space.get(root) is kind, others
    imported = kind.__qualname__ if space is main_module.imported_space() else None
    return _find_or_make_class, (imported, make, arguments), state, None, None, _complete_class


def _complete_function(made: FunctionType, state: tuple[Callable[[FunctionType, Any], Any], Any]) -> None:
    if made in _complete:
        return
    set_state, attributes = state
    set_state(made, attributes)
    _complete.add(made)
    main_module.register(made)


def _find_or_make_class(name: str | None, make: Callable[..., type], arguments: tuple[Any, ...]) -> type:
    """Return a class that arrived before, or an empty one.

    Args:
        name: name in the script, if the sender has imported the class; the script's class of that name is then taken.
        arguments: arguments of ``make``, with cloudpickle's key of the class.
    """
    # A second class object would run __init_subclass__ and the metaclass again for each object that arrives.
    known: Any = cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID.get(arguments[-2])
    if known is None and name is not None:
        known = main_module.own(name)
        if isinstance(known, type):
            class_history.adopt(known)
    return known if isinstance(known, type) else make(*arguments)


def _complete_class(made: type, state: tuple[Any, ...]) -> None:
    """Fill in a class that came by value, or update it from its origin, and register its name."""
    set_state, (attributes, slots), changes, is_named, others = state
    class_history.fill_in(made, attributes, changes, lambda news: set_state(made, (news, slots)))
    if is_named:
        main_module.register(made)
    main_module.keep(others)
