"""A script that defines one of each, and uses it in workers: prints what went wrong, as JSON."""

from __future__ import annotations

import contextvars
import dataclasses
import enum
import functools
import io
import itertools
import json
import logging
import multiprocessing
import pickle
import sys
import threading
import typing
import weakref
from typing import Any, ClassVar, Optional

import torch

from rlinf_async import Cluster, NodePlacementStrategy, Worker

T = typing.TypeVar("T")
P = typing.ParamSpec("P")
UserId = typing.NewType("UserId", int)
VARIABLE = contextvars.ContextVar("VARIABLE", default=3)
WITHOUT_DEFAULT: contextvars.ContextVar[int] = contextvars.ContextVar("WITHOUT_DEFAULT")
LOCK, RLOCK, CONDITION, EVENT = threading.Lock(), threading.RLock(), threading.Condition(), threading.Event()
LOCAL = threading.local()
WEAK: Any = weakref.WeakValueDictionary()
COUNT = itertools.count()
logger = logging.getLogger(__name__)
SCALE = 2


@functools.lru_cache(maxsize=8)
def cached(x: int) -> int:
    return x + 1


@functools.cache
def fibonacci(n: int) -> int:
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


@functools.singledispatch
def describe(x: Any) -> str:
    return "other"


@describe.register
def _(x: int) -> str:
    return "int"


@describe.register
def _(x: list) -> str:  # type: ignore[type-arg]
    return "list of " + describe(x[0])


@torch.no_grad()
def doubled(x: Any) -> Any:
    return x * SCALE


def logged(function: typing.Callable[P, T]) -> typing.Callable[P, T]:
    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        return function(*args, **kwargs)

    return wrapper


@logged
def wrapped(x: int, user: UserId = UserId(3)) -> int:
    return x + user


def plain(x: int) -> int:
    return doubled(x) + SCALE


class Pair(typing.NamedTuple):
    a: int
    b: str = "x"


class Shape(typing.TypedDict):
    a: int


class Goes(typing.Protocol):
    def go(self) -> int: ...


class Colour(enum.Enum):
    RED = 1
    CRIMSON = 1  # noqa: PIE796  # an alias
    BLUE = 2


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Box(typing.Generic[T]):
    def __init__(self, x: T) -> None:
        self.x = x


@dataclasses.dataclass
class Inner:
    k: int = 3
    pairs: list[Pair] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Config:
    made: ClassVar[int] = 0
    lr: float = 0.1
    inner: Optional[Inner] = None  # noqa: UP045  # a name that only the annotation refers to


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    a: int


class Outer:
    @dataclasses.dataclass
    class Nested:
        a: int = 1


class Computed:
    lock = threading.Lock()

    @functools.cached_property
    def value(self) -> int:
        with self.lock:
            return 5

    @functools.lru_cache  # noqa: B019
    def method(self, x: int) -> int:
        return x

    @functools.singledispatchmethod
    def dispatched(self, x: Any) -> str:
        return "other"

    @dispatched.register
    def _(self, x: int) -> str:
        return "int"


class Double(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        return gradient * 2


class Net(torch.nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.layer = torch.nn.Linear(2, 2)


class OwnError(ValueError):
    pass


STEPS = (step for step in ())


class Annotated:
    steps: STEPS  # type: ignore[valid-type]  # which cannot travel, and need not


def subclassed() -> bool:
    """Dataclasses know their sentinels by identity."""
    return dataclasses.make_dataclass("More", [("x", int, 1)], bases=(Config,))() is not None and all(
        field.default_factory is dataclasses.MISSING for field in dataclasses.fields(Config)
    )


def entered() -> int:
    with LOCK, RLOCK, CONDITION:
        LOCAL.x = 1
        EVENT.set()
        return LOCAL.x


USES: dict[str, tuple[typing.Callable[[], Any], Any]] = {
    "lru_cache": (lambda: cached(1), 2),
    "cache that calls itself": (lambda: fibonacci(30), 832040),
    "singledispatch": (lambda: [describe(1), describe([1]), describe("")], ["int", "list of int", "other"]),
    "decorated": (lambda: [wrapped(1), doubled(2)], [4, 4]),
    "context variable": (lambda: VARIABLE.get(), 3),
    "context variable without a default": (lambda: WITHOUT_DEFAULT.get(7), 7),
    "locks": (entered, 1),
    "weak dictionary": (lambda: len(WEAK), 0),
    "count": (lambda: next(COUNT), 0),
    "logger": (lambda: logger.name, "__main__"),
    "type variable": (lambda: [T.__name__, P.__name__, UserId(4)], ["T", "P", 4]),
    "named tuple": (lambda: Pair(1).b, "x"),
    "typed dict": (lambda: Shape(a=1)["a"], 1),
    "protocol": (lambda: Goes.__name__, "Goes"),
    "enums": (lambda: [Colour["CRIMSON"].value, (Access.READ | Access.WRITE).value], [1, 3]),
    "generic": (lambda: Box[int](1).x, 1),
    "slots": (lambda: Slotted(1).a, 1),
    "dataclass": (subclassed, True),
    "nested class": (lambda: [Outer.Nested().a, Outer.Nested.__qualname__], [1, "Outer.Nested"]),
    "members": (lambda: [Computed().value, Computed().method(2), Computed().dispatched(1)], [5, 2, "int"]),
    "autograd": (lambda: Double.apply(torch.ones(1)).item(), 2.0),
}

OBJECTS: dict[str, Any] = {
    "dataclass": Config(inner=Inner(pairs=[Pair(1)])),
    "slots": Slotted(1),
    "nested": Outer.Nested(),
    "named tuple": Pair(1),
    "enum": [Colour.RED, Access.READ],
    "generic": Box(1),
    "alias": Box[int],
    "module": Net(Config()),
    "error": OwnError("x"),
    "annotated": Annotated(),
    "class": Computed,
    "function": plain,
    "cache": fibonacci,
    "dispatcher": describe,
    "new type": UserId,
}
"""Each is pickled by reference, in the worker that it has travelled to."""


def echo(source: Any, target: Any) -> None:
    target.put(source.get())


class User(Worker):
    def use(self, name: str) -> Any:
        return USES[name][0]()

    def call(self, function: typing.Callable[[], Any]) -> Any:
        return function()

    def pickled(self, value: Any) -> Any:
        torch.save({"value": value}, io.BytesIO())
        again = pickle.loads(pickle.dumps(value))
        return type(again) is type(value), value

    def hints(self, value: Any) -> str:
        return str(typing.get_type_hints(type(value)))

    def by_child(self, value: Any) -> Any:
        context = multiprocessing.get_context("fork")
        there, back = context.Queue(), context.Queue()
        child = context.Process(target=echo, args=(there, back))
        child.start()
        there.put(value)
        try:
            return back.get(timeout=20)
        finally:
            child.join(5)


def run() -> None:
    wrong: dict[str, str] = {}

    def expect(what: str, expected: Any, method: typing.Callable[..., Any], argument: Any) -> None:
        try:
            (came,) = method(argument).wait(timeout=60)
        except Exception as error:
            came = f"{type(error).__name__}: {error}"
        if came != expected:
            wrong[what] = str(came)

    with Cluster(num_nodes=1, log_to_driver=False) as cluster:
        # Each group has its own definitions: the first one's come with the class, the others' with arguments.
        first, second, third = (
            User.create_group().launch(cluster, NodePlacementStrategy([0]), name=name) for name in "abc"
        )
        for name, (function, expected) in USES.items():
            for time in range(2):
                counted = expected + time if name == "count" else expected
                expect(f"{name} of the class, {time}", counted, first.use, name)
                expect(f"{name} as argument, {time}", expected, second.call, function)
        for name, value in OBJECTS.items():
            for time in range(2):
                try:
                    ((is_same, came),) = third.pickled(value).wait(timeout=60)
                except Exception as error:
                    is_same, came = False, f"{type(error).__name__}: {error}"
                is_own = came is value if isinstance(value, type | type(cached)) else type(came) is type(value)
                if not (is_same and is_own):
                    wrong[f"pickled {name}, {time}"] = str(came)
        config = OBJECTS["dataclass"]
        expect("hints", str(typing.get_type_hints(Config)), third.hints, config)
        expect("a child's queue", config, third.by_child, config)
    json.dump(wrong, sys.stdout)


if __name__ == "__main__":
    run()
