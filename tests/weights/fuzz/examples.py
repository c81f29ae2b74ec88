"""Hypothesis strategies for pairs of a source and a destination that fit, nearly fit, or do not."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias, TypeVar

import torch
from hypothesis import strategies as st

from tests.weights.fuzz.sides import Branch, Leaf, Node, Shape, Side, Stack, Tie, Value, labelled, nodes

Path: TypeAlias = tuple[str, ...]
T = TypeVar("T")


@dataclass(frozen=True)
class Pair:
    """Descriptions of both sides, and what is done with them.

    Attributes:
        twice: the source changes after the first update and is sent again.
        maps: receivers map, where they can.
    """

    source: Node
    destination: Node
    twice: bool = False
    maps: bool = False

    def make(self) -> tuple[Side, Side]:
        """The source and the destination, made anew."""
        destination = Side(self.destination)
        return Side(self.source, destination), destination


def _weighted(**weights: int) -> tuple[str, ...]:
    return tuple(name for name, weight in weights.items() for _ in range(weight))


# Of each, the first is what examples shrink to.

_PATHS: tuple[Path, ...] = (
    *(("w",), ("b",), ("a", "x"), ("a", "y"), ("a", "z", "u")),
    *(("s", "v"), ("s", "k"), ("s", "t", "q")),  # as members of a stack may have them
)
_BRANCHES: tuple[Path, ...] = ((), ("a",), ("a", "z"), ("s",), ("s", "t"))
_SHAPES: tuple[Shape, ...] = ((2,), (2,), (2, 3), (2, 3), (3, 2), (1,), (), (), (0,), (4,), (2, 1, 2))
_DTYPES = (
    *[torch.float32] * 6,
    *[torch.bfloat16] * 2,
    *(torch.float16, torch.float64, torch.int64, torch.int32, torch.bool),
)
_BATCHES: tuple[Shape, ...] = ((2,), (2,), (3,), (1,), (2, 3), (3, 2))
_SELDOM = (*[False] * 7, True)
_EVENLY = (False, True)
_MOSTLY = (True, True, False)

_FORMS = {
    "destination": _weighted(
        plain=18, transposed=3, stepped=3, roomy=2, inference=1, expanded=1, meta=1, negated=1, sparse=1, knotted=1
    ),
    "source": _weighted(
        plain=18, transposed=3, stepped=3, roomy=1, expanded=2, negated=1, number=2, array=2, meta=1, sparse=1
    ),
}
_CHANGES = {
    "destination": _weighted(none=40, dtype=6, shape=1, missing=1, null=3, text=1, number=1),
    "source": _weighted(none=40, dtype=2, shape=1, missing=5, null=2, text=1),
}
_KINDS = {
    "": _weighted(dict=6, module=5, td=3, params=2),
    "dict": _weighted(dict=3, module=2, td=2, dotted=2, tuple=1, params=1),
    "module": _weighted(module=4, params=1),
    "td": _weighted(td=3, dotted=1),
    "params": _weighted(td=1),
}
_TIES = {
    "destination": _weighted(no=3, same=5, view=4, partial=2, adjacent=2, interleaved=2, turned=2),
    "source": _weighted(no=2, equal=4, same=4, view=2),
}
_FORM_FOR = {"partial": "roomy", "adjacent": "roomy", "turned": "roomy", "interleaved": "stepped"}
_IN_STORAGE = ("plain", "transposed", "stepped", "roomy")
_VALUES = {"null": None, "text": "x", "number": 3}
_STATES: dict[str, Sequence[Any]] = {"destination": ("old", None), "source": ("new", "new", None, "bad")}
_NOTES: dict[str, Sequence[Any]] = {"destination": ("old", None, 3), "source": ("new", None, 7, 2.5, b"bytes")}
_MORE = {
    "destination": _weighted(none=50, child=3, number=1),
    "source": _weighted(none=80, child=3, number=1, fork=1, doubled=1),
}


class _Bytes:
    """Choices, one for each byte.

    Drawn as one stretch, and as many for every example: then examples do not resemble each other, and to choose
    something else at one place changes nothing behind it, so that shrinking is quick.
    """

    def __init__(self, drawn: bytes) -> None:
        self._drawn, self.used = drawn, 0

    def one(self, options: Sequence[T]) -> T:
        self.used += 1
        return _chosen(options, self._drawn[self.used - 1])


def _chosen(options: Sequence[T], byte: int) -> T:
    return options[byte * len(options) >> 8]


NEEDED = 157
"""Bytes for one pair."""


def pairs() -> st.SearchStrategy[Pair]:
    """Both sides have the same slots; each has them in containers and forms of its own, and may change some."""
    return st.binary(min_size=NEEDED, max_size=NEEDED).map(lambda drawn: pair_of(_Bytes(drawn)))


def pair_of(choices: _Bytes) -> Pair:
    slots = _slots(choices)
    is_swapped, is_twice, maps = choices.one(_SELDOM), choices.one(_SELDOM), choices.one(_EVENLY)
    has = choices.one(_SELDOM), choices.one(_SELDOM)
    more = {name: choices.one(_MORE[name]) for name in _MORE}
    destination, source = (_Drawing(choices, name, slots, *has).root() for name in ("destination", "source"))
    if is_swapped:
        source = _swapped(source, dict(labelled(destination)), slots)
    source, destination = _with_more(source, more["source"]), _with_more(destination, more["destination"])
    return Pair(source, destination, twice=is_twice and not is_swapped, maps=maps)


class Slot(NamedTuple):
    """A tensor that both sides have, as long as nothing is changed.  Attributes: twin: another one of the same form."""

    shape: Shape
    dtype: torch.dtype
    batch: Shape
    twin: Path | None


def _slots(choices: _Bytes) -> dict[Path, Slot]:
    rooms = choices.one(("as", "a", "s"))
    batch = choices.one(_BATCHES)
    slots: dict[Path, Slot] = {}
    for path in _PATHS:
        is_there, is_twin = choices.one(_EVENLY), choices.one(_EVENLY)
        slot = Slot(choices.one(_SHAPES), choices.one(_DTYPES), batch if path[0] == "s" else (), None)
        twins = [before for before, other in slots.items() if other.batch == slot.batch and other.twin is None]
        if is_there and ("s" if path[0] == "s" else "a") in rooms:
            slots[path] = slots[twins[-1]]._replace(twin=twins[-1]) if twins and is_twin else slot
    first = _PATHS[-3 if rooms == "s" else 0]
    return slots or {first: Slot(_SHAPES[0], _DTYPES[0], batch if rooms == "s" else (), None)}


class Choice(NamedTuple):
    """What a side makes of a slot."""

    form: str
    change: str
    seed: int
    dtype: torch.dtype
    how: str


class Member(NamedTuple):
    """A member of a stack.

    Attributes:
        label, first: its own, and that of the first member.
        rest: what remains of the batch.
        number: counts members.
    """

    label: str
    first: str
    rest: Shape
    number: int


class _Drawing:
    """One side.

    Args:
        name: "source" or "destination".
        slots: by path.
        has_state: modules have extra state.
        has_note: there is a value beside the tensors, where containers take one.
    """

    def __init__(self, choices: _Bytes, name: str, slots: Mapping[Path, Slot], has_state: bool, has_note: bool) -> None:
        self._slots, self._has_state, self._has_note = slots, has_state, has_note
        self._choices: dict[Path, Choice] = {}
        for path in _PATHS:
            form, change, seed = choices.one(_FORMS[name]), choices.one(_CHANGES[name]), choices.one((0, 0, 1, 2, 3))
            dtype, how = choices.one(_DTYPES), choices.one(_TIES[name])
            if path in slots:
                dtype = dtype if change == "dtype" else slots[path].dtype
                self._choices[path] = Choice(form, change, seed, dtype, how)
        self._kinds = {path: choices.one(range(256)) for path in _BRANCHES}
        self._states = {path: choices.one(_STATES[name]) for path in _BRANCHES}
        self._notes = {path: choices.one(_NOTES[name]) for path in _BRANCHES}
        self._is_stack, self._dim, self._is_nested = (choices.one(each) for each in (_MOSTLY, (0, 1), _EVENLY))
        self._root: Path = ("s",) if all(path[0] == "s" for path in slots) else ()
        self._batch = next((slot.batch for path, slot in slots.items() if path[0] == "s"), ())
        self._ties: dict[Path, Tie] = {}
        for path, slot in slots.items():
            if slot.twin is not None:
                self._tie(path, slot.twin)

    def root(self) -> Node:
        return self._stack("", "", self._batch) if self._root and self._is_stack else self._branch(self._root, "")

    def _tie(self, path: Path, twin: Path) -> None:
        choice, first = self._choices[path], self._choices[twin]
        how = choice.how
        if how == "no" or choice.change != "none" or first.change != "none":
            return
        if how == "equal":
            self._choices[path] = choice._replace(seed=first.seed)
            return
        label = ".".join(twin[len(self._root) :])
        is_first = all(tie.to != label for tie in self._ties.values())
        if how in _FORM_FOR and not (is_first and self._slots[twin].shape):
            how = "same"
        self._ties[path] = Tie(label, how)
        if is_first:
            form = first.form if first.form in _IN_STORAGE else "plain"
            self._choices[twin] = first._replace(form=_FORM_FOR.get(how, form))

    def _branch(self, path: Path, within: str, member: Member | None = None) -> Branch:
        kind = "td" if member is not None and path == ("s",) else _chosen(_KINDS[within], self._kinds[path])
        inside = within if within == "params" or kind in ("dotted", "tuple") else kind
        children: list[tuple[Any, Node]] = []
        for name in dict.fromkeys(each[len(path)] for each in self._slots if each[: len(path)] == path):
            below = (*path, name)
            if below in self._slots:
                node = self._leaf(below, inside, member)
            elif below == ("s",) and inside in ("dict", "td") and self._is_stack:
                node = self._stack("s", "s", self._batch)
            else:
                node = self._branch(below, inside, member)
            if node is not None:
                children.append((name, node))
        note = self._notes[path]
        is_taken = inside == "dict" or (inside == "td" and not isinstance(note, (int, float)))
        if self._has_note and is_taken and member is None:
            children.append(("note", Value(note)))
        state = self._states[path] if kind == "module" and self._has_state else ...
        return Branch(kind, tuple(children), member.rest if member is not None and kind == "td" else (), state)

    def _stack(self, label: str, first: str, batch: Shape, number: int = 0) -> Stack:
        """One of the whole batch, or, in another one, of what that leaves of it."""
        dim, is_nested = (self._dim, self._is_nested) if len(batch) > 1 else (0, False)
        members: list[Node] = []
        for index in range(batch[dim]):
            member = Member(f"{label}[{index}]", f"{first}[0]", batch[:dim] + batch[dim + 1 :], number * 4 + index)
            members.append(self._stack(*member) if is_nested else self._branch(("s",), "td", member))
        return Stack(dim, tuple(members))

    def _leaf(self, path: Path, within: str, member: Member | None) -> Node | None:
        slot, choice = self._slots[path], self._choices[path]
        if choice.change in _VALUES:
            is_taken = within == "dict" or (within == "td" and choice.change != "number" and member is None)
            is_taken = is_taken or (within == "module" and choice.change == "null")
            return Value(_VALUES[choice.change]) if is_taken else None
        if choice.change == "missing":
            return None
        if path in self._ties:
            tie = self._ties[path]
            return tie if member is None else Tie(f"{member.label}.{tie.to.removeprefix('s.')}", tie.how)
        shape = (slot.batch if member is None else member.rest) + slot.shape
        if choice.change == "shape":
            shape = (*shape, 1) if choice.seed % 2 or not slot.shape else shape[:-1]
        if choice.form == "knotted" and member is not None and member.label != member.first:
            return Tie(f"{member.first}.{'.'.join(path[1:])}")
        form = choice.form if _is_possible(choice.form, shape, choice.dtype, within) else "plain"
        return Leaf(shape, choice.dtype, form, choice.seed + (member.number if member is not None else 0) * 4)


def _is_possible(form: str, shape: Shape, dtype: torch.dtype, within: str) -> bool:
    match form:
        case "expanded":
            return 0 not in shape and any(size > 1 for size in shape)
        case "sparse":
            return shape != ()
        case "negated":
            return dtype.is_floating_point
        case "number":
            return shape == () and within in ("dict", "td")
        case "array":
            return dtype is not torch.bfloat16 and within in ("dict", "td")
    return form != "knotted"


def _swapped(source: Node, there: Mapping[str, Leaf | Tie], slots: Mapping[Path, Slot]) -> Node:
    """The source with tensors of the destination in the place of its own: of the twin, or of the same name."""
    others = {".".join(path): ".".join(slot.twin or path) for path, slot in slots.items()}
    others |= {".".join(slot.twin): ".".join(path) for path, slot in slots.items() if slot.twin}

    def replaced(label: str, node: Node) -> Node:
        leaf = there.get(others.get(label, ""))
        if not isinstance(node, Leaf) or not isinstance(leaf, Leaf) or leaf.form not in _IN_STORAGE:
            return node
        if (leaf.shape, leaf.dtype) != (node.shape, node.dtype):
            return node
        return Tie(f">{others[label]}", "same" if leaf.form == "plain" else "partial")

    return _mapped(source, "", replaced)


def _mapped(node: Node, label: str, function: Callable[[str, Node], Node]) -> Node:
    if not isinstance(node, Branch):
        return function(label, node)
    children = [(key, _mapped(child, f"{label}.{key}" if label else key, function)) for key, child in node.children]
    return replace(node, children=tuple(children))


def _with_more(node: Node, kind: str) -> Node:
    """A further child, which may have a key that is none, or goes on where another one ends."""
    if kind == "none" or not isinstance(node, Branch):
        return node
    there, key, leaf = dict(node.children), "more", Leaf((2,), torch.float32)
    if node.kind == "dict" and kind == "number":
        key = 3
    elif node.kind == "dict" and kind == "fork" and isinstance(there.get("w"), Leaf):
        key = "w.more"
    elif node.kind == "dict" and kind == "doubled" and getattr(there.get("a"), "kind", "") in ("dict", "module", "td"):
        twice = [(f"a.{below}", child) for below, child in there["a"].children if isinstance(child, Leaf)]
        key, leaf = (twice or [(key, leaf)])[0]
    return replace(node, children=(*node.children, (key, leaf)))


# -- what pairs are made of -------------------------------------------------------------------------------------------


def features(pair: Pair) -> set[str]:
    """What is to be found in a share of all pairs."""
    both = [*nodes(pair.source), *nodes(pair.destination)]
    leaves = [node for node in both if isinstance(node, Leaf)]
    hows = {node.how if node.to[0] != ">" else "aliased" for node in both if isinstance(node, Tie)}
    values = [node.value for node in both if isinstance(node, Value)]
    values += [node.state for node in both if isinstance(node, Branch) and node.state is not ...]
    shares = {
        "lazy": any(isinstance(node, Stack) for node in both),
        "tied": bool(hows & {"same", "view"}),
        "strided": any(leaf.form in ("transposed", "stepped", "expanded") for leaf in leaves),
        "partial": bool(_names(pair.destination) - _names(pair.source)),
        "None": None in values,
        "overlapping": bool(hows & {"partial", "adjacent", "interleaved", "turned"}),
        "values": any(value is not None for value in values),
        "mixed dtypes": len({leaf.dtype for leaf in leaves}) > 1,
        "aliased": "aliased" in hows,
        "twice": pair.twice,
        "mapped": pair.maps,
    }
    return {name for name, is_there in shares.items() if is_there}


def _names(side: Node) -> set[str]:
    return {re.sub(r"\[\d+\]", "", label).lstrip(".") for label, _ in labelled(side)}
