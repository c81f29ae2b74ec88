"""Functions and classes sent by value: cloudpickle's reduction, and their names in the receiver's ``__main__``.

Objects that string annotations name (``inner: "Inner"``) are sent along, because ``typing.get_type_hints`` looks them
up in the globals of the function or in the module of the class.

A class is one object per process, as in cloudpickle. So is a function that refers only to definitions and constants,
because pickling by reference requires the very object to which the name refers. Any other function arrives as a new
object each time, with the current values of its globals at the sender.

A class is sent along with each of its instances. A receiver fills in the class once. Afterwards, the receiver adopts
only attributes that the origin (the process that defines the class) has assigned since then, so that a worker's own
assignments (``Reward.model = load()``) survive the next argument of that class.
"""

from __future__ import annotations

import enum
import sys
import threading
import weakref
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakSet

from cloudpickle import cloudpickle

from rlinf_async._core import main_module, script_objects
from rlinf_async._core.main_module import MAIN_NAMES
from rlinf_async._core.unpicklable import ATOMS

# Function, arguments, state, None, None, and setter of the state, as returned by ``__reduce__``.
Reduced = tuple[Any, ...]

_IMPORTED: Final = type | ModuleType | BuiltinFunctionType | FunctionType

# Functions that have arrived completely; a later arrival may reuse them.
_complete: WeakSet[FunctionType] = WeakSet()


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
    """Collect the code and constants that a function and its callees use; return False if they use anything else."""
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
            # The name does not suffice, because a notebook cell may redefine the class.
            constant = "class", cloudpickle._get_or_create_tracker_id(value)
        elif isinstance(value, _IMPORTED):
            constant = getattr(value, "__module__", None), value.__name__
        elif value is ATOMS:  # the name refers to a builtin
            continue
        else:
            return False
        # Functions that arrived at different times may see different values of the same name.
        if constants.setdefault(name, constant) != constant:
            return False
    return True


def _find_or_make_function(
    name: str, constants: dict[str, Any], make: Callable[..., FunctionType], arguments: tuple[Any, ...]
) -> FunctionType:
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
        if inner:
            # Pickling an inner class by reference starts at the outer class.
            wanted.append(root)
        if with_annotations:
            others = {name: space[name] for name in wanted if name in space}
    if issubclass(kind, enum.Enum):
        # cloudpickle 3.1.3 omits aliases from the members.
        members = {name: member.value for name, member in kind.__members__.items()}
        arguments = *arguments[:3], members, *arguments[4:]
        for name in members:
            state[0].pop(name, None)
    state[0]["__qualname__"] = kind.__qualname__  # cloudpickle omits the qualified name
    state = set_state, state, _changes_of(kind, state[0]), space.get(root) is kind, others
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
    """Return a class that arrived earlier, or an empty one.

    Args:
        name: name in the script if the sender has imported the class; in that case the script's own class is used.
        arguments: arguments of ``make``, including cloudpickle's key of the class.
    """
    # A second class object would run __init_subclass__ and the metaclass again for each arriving object.
    known: Any = cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID.get(arguments[-2])
    if known is None and name is not None:
        known = main_module.own(name)
        if isinstance(known, type):
            _adopt_class(known)
    return known if isinstance(known, type) else make(*arguments)


def _complete_class(made: type, state: tuple[Any, ...]) -> None:
    set_state, (attributes, slots), changes, is_named, others = state
    _fill_in(made, attributes, changes, lambda news: set_state(made, (news, slots)))
    if is_named:
        main_module.register(made)
    main_module.keep(others)


# -- changed attributes of classes -----------------------------------------------------------------------------------

_NOTHING: Final = object()


class _ClassOrigin:
    """Attributes of a class of this process, as they were when the class was last sent.

    Attributes:
        marks: maps each attribute to a weak reference to its value, or to the value itself if it does not support weak
            references. A strong reference to a function of the class would keep the class alive forever.
        changes: maps each attribute assigned since the class was first sent to an increasing number.
    """

    def __init__(self, attributes: dict[str, Any]) -> None:
        self.marks = {name: _mark(value) for name, value in attributes.items()}
        self.changes: dict[str, int] = {}
        self._count = 0

    def look(self, attributes: dict[str, Any]) -> None:
        for name, value in attributes.items():
            mark = self.marks.get(name, _NOTHING)
            if (mark() if type(mark) is weakref.ref else mark) is not value:
                self._count += 1
                self.marks[name], self.changes[name] = _mark(value), self._count


_ours: WeakKeyDictionary[type, _ClassOrigin] = WeakKeyDictionary()
# Maps each class that another process defines to the changes applied to it here, as numbered by its origin.
_theirs: WeakKeyDictionary[type, dict[str, int]] = WeakKeyDictionary()
_lock = threading.RLock()


def _changes_of(kind: type, attributes: dict[str, Any]) -> dict[str, int]:
    with _lock:
        if kind in _theirs:
            return dict(_theirs[kind])
        origin = _ours.get(kind)
        if origin is None:
            origin = _ours[kind] = _ClassOrigin(attributes)
        else:
            origin.look(attributes)
        return dict(origin.changes)


def _adopt_class(kind: type) -> None:
    """Register a class of this process after another process has sent the same class from its own import."""
    with _lock:
        if kind not in _theirs:
            _ours.setdefault(kind, _ClassOrigin({}))


def _fill_in(
    kind: type, attributes: dict[str, Any], changes: dict[str, int], assign: Callable[[dict[str, Any]], Any]
) -> None:
    # Two threads may decode a class at the same time. Without the lock, the second thread could assign after the first
    # has run user code that set an attribute.
    with _lock:
        if kind in _ours:
            return
        known = _theirs.get(kind)
        if known is None:
            assign(attributes)
            _theirs[kind] = changes
            return
        news = {name for name, number in changes.items() if number > known.get(name, 0) and name in attributes}
        if news:
            assign({name: value for name, value in attributes.items() if name in news})
            known.update((name, changes[name]) for name in news)


def _mark(value: Any) -> Any:
    try:
        return weakref.ref(value)
    except TypeError:
        return value
