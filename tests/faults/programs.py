"""The hypothesis strategy that writes programs: single steps, and phrases of steps that go well together."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.faults.steps import (
    CALLS,
    SEVERED,
    SIZES,
    Call,
    Cancel,
    Close,
    Exec,
    Fork,
    Get,
    Kill,
    KillDaemon,
    Open,
    Pause,
    Program,
    Put,
    Send,
    Settle,
    Sever,
    Starve,
    Step,
    Stop,
)

_Steps = st.SearchStrategy[tuple[Step, ...]]

_worker = st.sampled_from(("a", "b"))
_who = st.sampled_from(("driver", "a", "b", "thread"))
_size = st.sampled_from(SIZES)
_times = st.sampled_from((1, 3, 10))
_deadline = st.sampled_from((None, None, None, 0.0, 0.01, 0.1))
_channel = st.sampled_from(("x", "y"))
_age = st.sampled_from((0, 0, 0, 1))
_seconds = st.sampled_from((0.05, 0.15, 0.3))

_call = st.builds(Call, _worker, st.sampled_from(CALLS), _size, _times, _deadline)
_send = st.builds(Send, _worker, _size, _times, st.booleans(), _deadline)
_starve = st.builds(Starve, _worker, _seconds, st.sampled_from((0, 0, 1, 2, 3)))
_sever = st.builds(Sever, _worker, st.sampled_from(SEVERED), st.sampled_from((-1, -1, 0, 1)))
_put = st.builds(Put, _who, _channel, _age, _size, _times, _deadline)
_get = st.builds(Get, _who, _channel, _age, _times, _deadline)
_pause = st.builds(Pause, st.sampled_from((0.01, 0.1)))


def _weighted(*strategies: tuple[int, st.SearchStrategy[Step]]) -> _Steps:
    step = st.one_of(*(strategy for weight, strategy in strategies for _ in range(weight)))
    return st.tuples(step)


_step = _weighted(
    (4, _call),
    (4, _send),
    (2, st.builds(Open, _channel, st.sampled_from((0, 1, 3)), st.booleans())),
    (1, st.builds(Close, _channel, _age, st.booleans())),
    (3, _put),
    (2, _get),
    (1, st.builds(Cancel, st.integers(0, 5))),
    (1, st.builds(Fork, st.sampled_from(("driver", "a", "b")), _seconds)),
    (1, _starve),
    (1, _sever),
    (1, st.builds(Stop, _worker, _seconds)),
    (1, _pause),
    (1, st.just(Settle())),
)


def _broken_way() -> _Steps:
    """Traffic, a fault on its way, and traffic again."""

    def join(before: Step, settled: bool, fault: Step, after: list[Step]) -> tuple[Step, ...]:
        return (before, Settle(), fault, *after) if settled else (before, fault, *after)

    traffic = st.one_of(_call, _send)
    return st.builds(
        join, traffic, st.booleans(), st.one_of(_starve, _sever), st.lists(traffic | _pause, min_size=1, max_size=3)
    )


def _used_late() -> _Steps:
    """A channel that processes have, closed before some of them use it, and perhaps made again."""

    def join(name: str, first: list[Step], again: bool, uses: list[tuple[str, bool]]) -> tuple[Step, ...]:
        age = int(again)
        steps = [Put(who, name, age) if puts else Get(who, name, age) for who, puts in uses]
        return (Open(name, handed=True), *first, Settle(), Close(name), *([Open(name)] if again else []), *steps)

    first = st.lists(st.sampled_from((Put("driver", "x"), Get("driver", "x"))), max_size=2)
    uses = st.lists(st.tuples(st.sampled_from(("a", "b", "driver")), st.booleans()), min_size=1, max_size=2)
    return st.builds(join, st.just("x"), first, st.booleans(), uses)


def _full_channel() -> _Steps:
    """More puts than there is room for."""

    def join(name: str, maxsize: int, puts: list[tuple[str, int]], closes: bool) -> tuple[Step, ...]:
        steps = [Put(who, name, 0, size, 3) for who, size in puts]
        return (Open(name, maxsize), *steps, *([Close(name)] if closes else []))

    puts = st.lists(st.tuples(_who, _size), min_size=1, max_size=2)
    return st.builds(join, _channel, st.sampled_from((1, 2)), puts, st.booleans())


def _one(step: st.SearchStrategy[Step]) -> _Steps:
    return st.tuples(step)


_phrase = st.one_of(*[_step] * 5, _broken_way(), _broken_way(), _used_late(), _used_late(), _full_channel())
_end = st.one_of(
    *[st.just(())] * 5,
    _one(st.builds(Kill, _worker)),
    _one(st.builds(Exec, _worker)),
    *[_one(st.builds(KillDaemon, st.just(3)))] * 2,
)


def programs() -> st.SearchStrategy[Program]:
    """Programs of a dozen steps or so; a worker dies in some, and some end with the death of one or of the daemon."""
    deaths: st.SearchStrategy[list[Step]] = st.one_of(
        st.just([]), st.just([]), st.lists(st.builds(Kill, _worker), max_size=1)
    )

    def join(first: list[tuple[Step, ...]], *rest: tuple[Step, ...]) -> Program:
        return tuple(step for phrase in (*first, *rest) for step in phrase)

    return st.builds(join, st.lists(_phrase, max_size=6), deaths, _phrase, _end)
