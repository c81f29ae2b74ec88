"""Encoding of arguments and results: round trips, shared memory, errors for values that cannot be pickled."""

from __future__ import annotations

import dataclasses
import functools
import socket
import subprocess
import sys
import threading
from collections import OrderedDict, deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as npst

from rlinf_async._core import codec, unpicklable
from rlinf_async.errors import SerializationError

ROOT = Path(__file__).resolve().parents[2]
LARGE = 64 * 1024


def travel(value: Any) -> Any:
    return codec.decode(codec.encode(value).to_bytes())


class Holder:
    """Anything with attributes."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class Slotted:
    __slots__ = ("lock", "name")

    def __init__(self, lock: Any) -> None:
        self.name = "slotted"
        self.lock = lock


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    name: str
    lock: Any


class Selective:
    """Its own __getstate__ leaves the lock out, but not the generator."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.steps = (step for step in range(3))

    def __getstate__(self) -> dict[str, Any]:
        return {"steps": self.steps}


class RaisesInReduce:
    def __init__(self, error: BaseException) -> None:
        self.errors = [error]

    def __reduce__(self) -> Any:
        raise self.errors.pop() if self.errors else ValueError("again")


class LoadsBadly:
    def __reduce__(self) -> Any:
        return int, ("no number",)


# -- round trips ------------------------------------------------------------------------------------------------------

atoms = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
keys = st.text() | st.integers() | st.booleans()
nested = st.recursive(
    atoms,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(keys, inner, max_size=5)
        | st.tuples(inner, inner)
        | st.frozensets(atoms, max_size=3)
        | st.builds(OrderedDict, st.dictionaries(keys, inner, max_size=3))
    ),
    max_leaves=20,
)


def with_types(value: Any) -> Any:
    """The value with the type of everything in it: 1, 1.0 and True are not the same."""
    if isinstance(value, dict):
        return type(value), [(with_types(key), with_types(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [with_types(item) for item in value]
    return type(value), value


@given(nested)
def test_nested_builtin_values_come_back_equal_and_of_the_same_types(value: Any) -> None:
    assert with_types(travel(value)) == with_types(value)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        npst.arrays(
            st.sampled_from([np.uint8, np.int16, np.float32, np.float64, np.complex128, np.bool_]),
            npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=20),
        ),
        max_size=6,
    )
)
def test_arrays_of_any_shape_come_back_equal_and_writable(arrays: list[np.ndarray[Any, Any]]) -> None:
    for again, array in zip(travel({"arrays": arrays})["arrays"], arrays, strict=True):
        assert again.dtype == array.dtype
        assert again.shape == array.shape
        assert again.flags.writeable
        assert again.tobytes() == array.tobytes()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 100_000), max_size=8))
def test_the_parts_make_up_the_body_and_every_buffer_is_aligned(sizes: list[int]) -> None:
    encoded = codec.encode([np.full(size, index, np.uint8) for index, size in enumerate(sizes)])
    body = encoded.to_bytes()
    assert len(body) == encoded.nbytes == sum(len(part) for part in encoded.parts())
    target = bytearray(encoded.nbytes + 3)
    encoded.write_into(memoryview(target))
    assert target[: encoded.nbytes] == body
    offset = 0
    for part in encoded.parts():
        if isinstance(part, memoryview):
            assert offset % 64 == 0
        offset += len(part)
    assert [array.tolist() for array in codec.decode(body)] == [[index] * size for index, size in enumerate(sizes)]


def test_a_call_without_arguments_is_a_constant() -> None:
    assert codec.encode(((), {})) is codec.encode(((), {}))
    assert codec.decode(codec.encode(((), {})).to_bytes()) == ((), {})
    assert codec.encode(((), {"x": 1})) is not codec.encode(((), {}))


def test_a_plain_value_is_one_pickle_behind_a_zero() -> None:
    encoded = codec.encode({"a": [1, 2.5, "x"]})
    assert encoded.to_bytes() == b"\0" + encoded.head
    assert not encoded.buffers


@pytest.mark.parametrize("base", [dict, list, tuple, str, int, float, bytes])
def test_a_local_class_that_only_looks_plain_keeps_its_type(base: type) -> None:
    local = type("Local", (base,), {})
    for value in (local(), [local()], {"a": (local(),)}):
        assert type(travel(value)) is type(value)
    assert type(travel([local()])[0]) is local


def test_encoding_copies_no_large_memory() -> None:
    array = np.zeros(LARGE, np.uint8)
    encoded = codec.encode({"array": array})
    array[:] = 7
    assert codec.decode(encoded.to_bytes())["array"].min() == 7


def test_large_bytes_are_not_copied_into_the_pickle() -> None:
    text = b"x" * LARGE
    assert any(part is text for part in codec.encode([text, Holder()]).parts())


def test_a_pickle_and_its_memory_may_come_apart() -> None:
    value = {"large": np.arange(LARGE), "small": np.arange(200), "text": "x"}
    encoded = codec.encode(value)
    pieces = [memoryview(bytearray(view)) for view in encoded.buffers]
    made = codec.decode_parts(encoded.head, pieces)
    assert made["text"] == "x"
    assert np.array_equal(made["large"], value["large"])
    assert np.array_equal(made["small"], value["small"])
    assert np.shares_memory(made["large"], np.frombuffer(pieces[0], dtype=np.uint8))
    made["small"][0] = 7  # a copy, and writable
    with pytest.raises(SerializationError):
        codec.decode_parts(encoded.head, pieces[:1])


def test_large_arrays_from_bytes_are_writable() -> None:
    array = travel(np.zeros(LARGE))
    array[:] = 1
    assert array.all()


def test_memory_that_was_read_only_stays_so() -> None:
    for size in (8, LARGE):
        assert not travel(np.frombuffer(bytes(size), np.uint8)).flags.writeable


def test_a_writable_body_is_viewed_not_copied() -> None:
    body = memoryview(bytearray(codec.encode(np.zeros(LARGE, np.uint8)).to_bytes()))
    array = codec.decode(body)
    array[:] = 9
    assert bytes(body[-LARGE:]) == b"\x09" * LARGE


def test_what_is_small_does_not_keep_a_writable_body_alive() -> None:
    data = bytearray(codec.encode([np.full(2000, 1, np.uint8), np.zeros(LARGE, np.uint8)]).to_bytes())
    with memoryview(data) as body:
        small, large = codec.decode(body)
    with pytest.raises(BufferError):
        data.clear()
    del large
    data.clear()
    assert small.min() == 1


def test_the_layout_refuses_what_it_does_not_know() -> None:
    good = codec.encode(np.zeros(LARGE, np.uint8)).to_bytes()
    for body in (b"", b"\2" + good[1:], good[:-1], good[:10], b"\0", b"\0garbage", memoryview(b"")):
        with pytest.raises(SerializationError, match="cannot be rebuilt"):
            codec.decode(body)
    with pytest.raises(SerializationError, match=rf"speaks of {len(good)} bytes, the body has {len(good) - 1}"):
        codec.decode(good[:-1])


# -- what __main__ defines ------------------------------------------------------------------------------------------

DRIVER = '''
import pickle, subprocess, sys
from rlinf_async._core import codec

SCALE = 10

class Policy:
    updates = 0
    def __init__(self, weight): self.weight = weight
    def act(self, x): return self.weight * x * SCALE

def double(policy):
    return Policy(policy.weight * 2)

WORKER = """
import sys
from rlinf_async._core import codec
function, policy = codec.decode(sys.stdin.buffer.read())
assert type(policy).__module__ == "__main__" and "__main__" in sys.modules
assert policy.act(1) == 30
type(policy).updates = 99
sys.stdout.buffer.write(codec.encode(([function(policy), policy], type(policy))).to_bytes())
"""

act = Policy.act
body = codec.encode((double, Policy(3))).to_bytes()
reply = subprocess.run([sys.executable, "-c", WORKER], input=body, stdout=subprocess.PIPE, check=True).stdout
(doubled, same), kind = codec.decode(reply)
assert kind is Policy and type(doubled) is Policy and isinstance(same, Policy)
assert doubled.weight == 6 and same.weight == 3
SCALE = 100
assert doubled.act(1) == 600, "the class sees this script's globals"
assert Policy.act is act and Policy.updates == 0, "a reply does not change the caller's class"
print("as expected")
'''


def run_python(*arguments: str, stdin: str = "") -> str:
    """What another Python with this package prints; it must not complain."""
    environment = {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *arguments], input=stdin, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    return done.stdout


def test_what_main_defines_travels_by_value_and_comes_back_as_the_callers_own(tmp_path: Path) -> None:
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    assert run_python(str(script)) == "as expected\n"


RECEIVER = """
import sys
from rlinf_async._core import codec
print([codec.decode(body)[0].rate for body in eval(sys.stdin.read())])
"""


def test_a_class_by_value_follows_the_changes_of_its_origin() -> None:
    config = type("Config", (), {"rate": 1})
    bodies = []
    for rate in (1, 2):
        config.rate = rate  # type: ignore[attr-defined]
        bodies.append(codec.encode([config]).to_bytes())
    assert run_python("-c", RECEIVER, stdin=repr(bodies)) == "[1, 2]\n"


ASSIGNING = """
import sys
from rlinf_async._core import codec
first, second, third = eval(sys.stdin.read())
(reward,) = codec.decode(first)
reward.model = "own"
reward.made["own"] = 1
codec.decode(second)
print(reward.model, reward.rate, reward.made)
codec.decode(third)
print(reward.model, reward.rate, reward.made)
"""


def test_attributes_that_a_receiver_has_assigned_stay_until_the_origin_assigns_them_anew() -> None:
    reward: Any = type("Reward", (), {"model": None, "rate": 1.0, "made": {}})
    bodies = []
    for changes in ({}, {"rate": 2.0}, {"model": "new"}):
        for name, value in changes.items():
            setattr(reward, name, value)
        bodies.append(codec.encode([reward]).to_bytes())
    assert run_python("-c", ASSIGNING, stdin=repr(bodies)) == "own 2.0 {'own': 1}\nnew 2.0 {'own': 1}\n"


WITHOUT_TENSORS = """
import sys
import numpy
from rlinf_async._core import codec
codec.extend("torch", "rlinf_async._transports.tensors")
codec.decode(codec.encode({"a": numpy.zeros(100000), "f": lambda: 1}).to_bytes())
print("torch" in sys.modules)
"""


def test_code_by_value_keeps_the_name_of_its_file() -> None:
    def outer() -> Any:
        def inner() -> None: ...

        return inner

    came = travel(outer)
    assert came.__code__ is not outer.__code__
    assert came.__code__.co_filename == came().__code__.co_filename == __file__


def test_without_a_tensor_torch_is_not_imported() -> None:
    assert run_python("-c", WITHOUT_TENSORS) == "False\n"


# -- providers --------------------------------------------------------------------------------------------------------

PROVIDER = """
def reduce(obj, state):
    if not hasattr(obj, "number"):
        return NotImplemented
    state.setdefault("seen", []).append(obj.number)
    return complex, (obj.number, len(state["seen"]))
"""


def test_a_provider_is_imported_when_the_first_object_of_its_package_is_met(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "provider_for_fakelib.py").write_text(PROVIDER)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(codec, "_providers", {})
    codec.extend("fakelib", "provider_for_fakelib")
    fake = type("Fake", (), {"__module__": "fakelib.deep.inside"})
    one, two = fake(), fake()
    one.number, two.number = 1, 2
    other = type("Other", (Holder,), {"__module__": "fakelibrary"})
    travel([Holder(a=1), other(number=3).number])
    assert "provider_for_fakelib" not in sys.modules
    assert travel([one, two, one]) == [1 + 1j, 2 + 2j, 1 + 1j]
    assert travel([one]) == [1 + 1j], "the state lives as long as one message"
    assert "provider_for_fakelib" in sys.modules


def test_what_a_provider_does_not_want_travels_in_the_usual_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "another_provider.py").write_text(PROVIDER)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(codec, "_providers", {})
    codec.extend("test_codec", "another_provider")
    assert travel([Holder(x=5)])[0].x == 5


# -- what cannot travel -----------------------------------------------------------------------------------------------


def refusal(value: Any, **options: Any) -> SerializationError:
    with pytest.raises(SerializationError) as caught:
        codec.encode(value, **options)
    assert caught.value.__cause__ is not None
    return caught.value


def closing_over(value: Any) -> Any:
    return lambda: value


def in_a_circle() -> Any:
    parent, child = Holder(), Holder()
    child.parent = parent
    parent.children = [child]
    parent.inner = Holder(lock=LOCK)
    return parent


LOCK = threading.Lock()


@pytest.mark.parametrize(
    ("value", "path", "kind"),
    [
        (LOCK, "value", "_thread.lock"),
        ([1, [2, LOCK]], "value[1][1]", "_thread.lock"),
        ({"a": {("b", 1): LOCK}}, "value['a'][('b', 1)]", "_thread.lock"),
        (Holder(model={"lock": LOCK}), "value.model['lock']", "_thread.lock"),
        (Slotted(LOCK), "value.lock", "_thread.lock"),
        (Frozen("x", [LOCK]), "value.lock[0]", "_thread.lock"),
        ([iter(()), (i for i in ())], "value[1]", "generator"),
        (deque([1, LOCK]), "value[1]", "_thread.lock"),
        (OrderedDict(a=OrderedDict(b=LOCK)), "value['a']['b']", "_thread.lock"),
        (closing_over(LOCK), "value.__closure__[0].cell_contents", "_thread.lock"),
        (functools.partial(print, LOCK), "value.args[0]", "_thread.lock"),
        (Holder(a=LOCK).__init__, "value.__self__.a", "_thread.lock"),
        (ValueError("x", LOCK), "value.args[1]", "_thread.lock"),
        (Selective(), "value.steps", "generator"),
        (in_a_circle(), "value.inner.lock", "_thread.lock"),
        (type("Local", (), {"shared": LOCK})(), "value.__class__.shared", "_thread.lock"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_error_names_the_path_and_the_type(value: Any, path: str, kind: str) -> None:
    assert str(refusal(value)).startswith(f"the value cannot travel: {path} is of type {kind} and cannot be pickled")


def test_a_set_is_searched_too() -> None:
    assert "value[0] element <unlocked _thread.lock" in str(refusal([{threading.Lock()}]))


def test_the_paths_of_a_call_begin_with_args_and_kwargs() -> None:
    value = ((1, Holder(model={"lock": LOCK})), {"env": Holder(_sock=LOCK)})
    error = refusal(value, describe="argument of step()", root=("args", "kwargs"))
    assert str(error).startswith("argument of step() cannot travel: args[1].model['lock'] is of type _thread.lock")
    with socket.socket() as sock:
        error = refusal(((), {"env": Holder(_sock=sock)}), describe="argument of step()", root=("args", "kwargs"))
    assert str(error).startswith("argument of step() cannot travel: kwargs['env']._sock is of type socket.socket")


def test_each_part_of_a_call_may_be_the_one_nested_too_deeply() -> None:
    for root, named in ((("args", "kwargs"), "args or kwargs"), ("result", "result")):
        error = unpicklable.nested_too_deeply("the call", root, RecursionError())
        assert str(error).startswith(f"the call cannot travel: {named} is nested too deeply")


@pytest.mark.parametrize("error", [ValueError("no"), MemoryError(), RecursionError(), GeneratorExit(), StopIteration()])
def test_whatever_a_reduce_raises_becomes_a_serialization_error(error: BaseException) -> None:
    refusal([RaisesInReduce(error)])


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_an_exit_is_not_taken_for_an_unpicklable_value(error: BaseException) -> None:
    with pytest.raises(type(error)):
        codec.encode([RaisesInReduce(error)])


def test_nesting_that_is_too_deep_is_an_error_that_says_so() -> None:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    assert "nested too deeply" in str(refusal(value, describe="result of step()"))


def test_the_search_ends_even_in_a_large_value(monkeypatch: pytest.MonkeyPatch) -> None:
    value = [Holder(index=index) for index in range(1000)] + [LOCK]
    assert "value[1000] is of type _thread.lock" in str(refusal(value))
    monkeypatch.setattr(unpicklable, "_SEARCH_TIMEOUT_S", 0)
    assert "value is of type list" in str(refusal(value))


# -- what cannot be rebuilt -------------------------------------------------------------------------------------------


@pytest.fixture
def foreign_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module that the sender has, and the receiver not."""
    (tmp_path / "foreign_module.py").write_text("class Maze:\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import foreign_module

    yield foreign_module
    sys.modules.pop("foreign_module", None)


def test_a_missing_module_is_named_with_the_path_where_it_was_looked_for(
    foreign_module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = codec.encode([foreign_module.Maze()]).to_bytes()
    monkeypatch.setattr(sys, "path", ["/nowhere", *sys.path[1:]])
    monkeypatch.delitem(sys.modules, "foreign_module")
    with pytest.raises(
        SerializationError, match=r"no module 'foreign_module'.*sys\.path here is \['/nowhere'"
    ) as caught:
        codec.decode(body)
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_a_missing_class_is_named_with_its_module(foreign_module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    body = codec.encode([foreign_module.Maze()]).to_bytes()
    monkeypatch.delattr(foreign_module, "Maze")
    with pytest.raises(SerializationError, match=r"another version of a module \(.*Maze.*foreign_module.*sys\.path"):
        codec.decode(body)


def test_an_object_that_refuses_to_be_rebuilt_is_a_serialization_error() -> None:
    with pytest.raises(SerializationError, match="ValueError: invalid literal") as caught:
        travel([LoadsBadly()])
    assert isinstance(caught.value.__cause__, ValueError)
