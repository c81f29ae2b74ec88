"""Ways from a source to a destination, one function each, and what a pair comes to on one of them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, TypeAlias

from rlinf_async.torchrl import WeightStrategy
from rlinf_async.weights import Publisher, Subscriber
from tests._support.weight_parts import LocalLink
from tests.weights.fuzz.examples import Pair
from tests.weights.fuzz.oracle import Refused, Written, differences, judge
from tests.weights.fuzz.sides import read

Deliver: TypeAlias = Callable[[], Awaitable[None]]

DEADLINE_S = 20.0


@dataclass(frozen=True)
class Way:
    """A way from a source to a destination.

    Attributes:
        open: gives what delivers once; called with the source, the destination and whether that is mapped.
        maps: whether it is; None: as the example says.
    """

    open: Callable[[Any, Any, bool], AbstractAsyncContextManager[Deliver]]
    maps: bool | None = None

    def maps_in(self, pair: Pair) -> bool:
        return pair.maps if self.maps is None else self.maps


@dataclass(frozen=True)
class Failed:
    """An error.  Attributes: kind: name of its class; touched: what the destination shows that it did not before."""

    kind: str
    text: str
    touched: list[str]


async def run(way: Way, pair: Pair) -> Written | Failed:
    """The destination after the source has come to it, or the error."""
    source, destination = pair.make()
    before = shown = _shown(destination.holder)
    try:
        async with way.open(source.holder, destination.holder, way.maps_in(pair)) as deliver:
            await deliver()
            if pair.twice:
                source.refill()
                before = _shown(destination.holder)
                await deliver()
            shown = _shown(destination.holder)
    except Exception as error:
        return Failed(type(error).__name__, str(error), differences(before, _shown(destination.holder)))
    left = differences(shown, _shown(destination.holder))
    assert not left, f"changed when the way was closed: {left}"
    return Written(shown)


def expected(pair: Pair, maps: bool) -> Written | Refused:
    """The same by the rules."""
    source, destination = pair.make()
    outcome = judge(source, destination, maps=maps)
    if pair.twice and isinstance(outcome, Written):
        source.refill()
        outcome = judge(source, destination, maps=maps)
    return outcome


def difference(rules: Written | Refused, found: Written | Failed) -> str:
    """What a way has made of a pair that the rules do not; "" if nothing."""
    match rules, found:
        case Written(), Written():
            return "; ".join(differences(rules.values, found.values, rules.cast))
        case Written(), Failed():
            return f"is refused, and fits: {found.kind}: {found.text}"
        case Refused(), Written():
            return f"is written, and should be refused: {rules}"
        case Refused(), Failed():
            if found.touched:
                return f"is refused, and was written to: {found.touched}"
            is_told = rules.kind != "WeightMismatch" or any(name in found.text for name in rules.names)
            return "" if found.kind == rules.kind and is_told else f"{found.kind}: {found.text}, and not {rules}"
    raise AssertionError(rules, found)


def _shown(holder: Any) -> dict[str, Any]:
    try:
        return read(holder)
    except TypeError:  # a key that is no name
        return {}


@contextlib.asynccontextmanager
async def strategy(kind: str, source: Any, destination: Any, maps: bool) -> AsyncIterator[Deliver]:
    """``WeightStrategy``, without any link."""
    applies = WeightStrategy(kind)  # type: ignore[arg-type]  # one of the two

    async def deliver() -> None:
        applies.apply_weights(destination, applies.extract_weights(source))

    yield deliver


@contextlib.asynccontextmanager
async def local_link(source: Any, destination: Any, maps: bool) -> AsyncIterator[Deliver]:
    """A publisher and a subscriber of this loop."""
    to_receiver, to_sender = LocalLink.pair()
    apply = "map" if maps else "copy"
    async with Publisher(apply=apply) as publisher, Subscriber(to_sender, destination, apply=apply) as subscriber:
        publisher.add(0, to_receiver)

        async def deliver() -> None:
            handle = await publisher.publish(source, timeout=DEADLINE_S)
            try:
                while not handle.done():
                    await subscriber.receive(DEADLINE_S)
            finally:
                await handle

        yield deliver


NEAR = {
    "strategy, state dict": Way(functools.partial(strategy, "state_dict"), maps=False),
    "strategy, TensorDict": Way(functools.partial(strategy, "tensordict"), maps=False),
    "local link": Way(local_link),
}
"""Ways within one loop, by name."""
