"""``WorkerGroup``: calls methods on all or some ranks of a launched group; finds groups by name, closes them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import operator
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Hashable, Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeVar, overload

from rlinf_async._client import registry
from rlinf_async._client.client import NodeClient
from rlinf_async._client.name_lookup import find_name
from rlinf_async._core import codec, dialect, frames, operations
from rlinf_async._core.own_logger import own_logger
from rlinf_async._core.root_cause import fold_ranks
from rlinf_async._core.type_variables import R, W_co
from rlinf_async._core.worker_facts import read_worker
from rlinf_async._group.each import per_rank
from rlinf_async._group.idempotent import is_idempotent
from rlinf_async._group.members import Members
from rlinf_async._group.pool_calls import PoolCalls
from rlinf_async._group.restart_rounds import Restart
from rlinf_async._waits.thread_gate import must_await
from rlinf_async.address import WorkerInfo
from rlinf_async.any_rank import AnyRank, check_options
from rlinf_async.configuration import did_you_mean
from rlinf_async.errors import ClosedError, ConfigError, NodeLost, WorkerDied
from rlinf_async.handle import Handle
from rlinf_async.outcome import CallDeadline
from rlinf_async.stream import Stream, StreamCall
from rlinf_async.work import NoneOrWork, Work, blocking

P = ParamSpec("P")
W = TypeVar("W")

logger = own_logger(__name__)

_CLOSE_ANSWER_S: Final = 5.0

# Names of the group's own methods that a worker class may also use; in that case, ``group.call``, for example, is the
# worker's method.
_SHADOWED: Final = frozenset({"any", "call", "restart", "on_death"})

_NO_ARGUMENTS: Final = (codec.encode_arguments((), {}, describe="no argument", root="args"),)


@dataclass(frozen=True)
class WorkerRank:
    """An entry of ``worker_info_list``."""

    worker: WorkerInfo
    rank: int


# This façade has 34 methods, whose names come from the user's class and from RLinf's interface; calls are implemented
# in ``_group/members.py``.
class WorkerGroup(Generic[W_co]):
    """A launched group, which has every public method of the worker class.

    A call goes to all ranks and returns a ``Handle``; an async generator method returns a ``Stream``.
    ``group.call(Rollout.rollout, 3)`` does the same as ``group.rollout(3)``, but lets type checkers check the call.

    Example:
        group = Rollout.create_group(config).launch(cluster, name="rollout")
        await group                                      # all constructors are done, or their errors are raised here
        results = await group.rollout(3)                 # [rank 0's, rank 1's, ...]
        await group.execute_on(0, 3).rollout(3)          # only ranks 0 and 3; group[0:4] is a view, too
        await group.load(each(shards))                   # every rank gets its own argument
        await group.close()                              # or `async with group:`
    """

    def __init__(
        self, members: Members, worker_cls: type[W_co], ranks: Sequence[int] | None = None, ready: Handle | None = None
    ) -> None:
        """Internal; use ``Worker.create_group(...).launch(cluster)`` or ``from_group_name`` to create an instance."""
        self._members = members
        self._worker_cls = worker_cls
        self._ranks = range(members.size) if ranks is None else ranks
        self._callee = members.callee(self._ranks)
        self._ready = ready
        for name, method in public_methods(worker_cls).items():
            setattr(self, name, method.bind(self))

    def __repr__(self) -> str:
        members = self._members
        nodes = len({info.cluster_node_rank for info in members.infos})
        where = f" on {nodes} node{'s' * (nodes != 1)}" if nodes else ""
        parts = [f"{members.size} worker{'s' * (members.size != 1)}{where}"]
        if len(self._ranks) != members.size:
            parts[0] = f"ranks {fold_ranks(self._ranks)} of {parts[0]}"
        if members.closed:
            parts.append("closed")
        elif members.endpoints is None:
            parts.append("launching")
        away = set() if members.supervisor is None else members.supervisor.away
        for what, ranks in (("dead", members.deaths.keys() - away), ("away", away)):
            if ranks:
                parts.append(f"{len(ranks)} {what}: {fold_ranks(sorted(ranks))}")
        calls = len(members.open)
        parts.append(f"{calls} call{'s' * (calls != 1)} open")
        return f"<WorkerGroup {members.name} [{' | '.join(parts)}]>"

    # -- waiting ------------------------------------------------------------------------------------------------

    def __await__(self) -> Generator[Any, Any, WorkerGroup[W_co]]:
        """Wait until every worker is constructed.

        Raises:
            Exception: a constructor's error, or the reason why the workers could not be started.
        """
        if self._ready is not None:
            yield from self._ready.async_wait().__await__()
        return self

    def wait_ready(self, timeout: float | None = None) -> WorkerGroup[W_co]:
        """Block until every worker is constructed, and return the group; a coroutine uses ``await group`` instead.

        Raises:
            DeadlineExceeded: the workers were not constructed within ``timeout`` seconds.
            Exception: a constructor's error, or the reason why the workers could not be started.
        """
        if self._ready is not None:
            self._ready.wait(timeout)
        return self

    async def __aenter__(self) -> WorkerGroup[W_co]:
        self._check_whole()
        try:
            return await self
        except BaseException:
            await start_closing(self._members).async_wait()
            raise

    async def __aexit__(self, *exc_info: object) -> None:
        await start_closing(self._members).async_wait()

    def __enter__(self) -> WorkerGroup[W_co]:
        """Wait until the group is ready. ``with group:`` is for blocking code, and closes the group at the end.

        Raises:
            RuntimeError: called in a coroutine, which must use ``async with``.
        """
        if must_await():
            raise RuntimeError(
                f"`with group` would block the event loop that runs on this thread (group '{self._members.name}'): "
                "write `async with group:` here"
            )
        self._check_whole()
        try:
            return self.wait_ready()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # -- views --------------------------------------------------------------------------------------------------

    def execute_on(self, *ranks: int) -> WorkerGroup[W_co]:
        """Return a view of some ranks, in the given order; the group itself is unchanged.

        Raises:
            AssertionError: a rank does not exist, or is given twice.
        """
        last = self._members.size - 1
        ranks = tuple(operator.index(rank) for rank in ranks)
        for rank in ranks:
            if not 0 <= rank <= last:
                raise AssertionError(f"{rank!r} is not a rank of '{self._members.name}', which has ranks 0-{last}")
        if len(set(ranks)) != len(ranks) or not ranks:
            raise AssertionError(f"execute_on() needs different ranks, got {ranks}")
        return WorkerGroup(self._members, self._worker_cls, list(ranks), self._ready)

    def __getitem__(self, index: int | slice) -> WorkerGroup[W_co]:
        """Return a view of the ranks selected by an index or slice of this view's list of ranks."""
        try:
            chosen = list(self._ranks)[index]
        except IndexError:
            raise IndexError(f"there is no [{index}]: {self._whose_ranks()}") from None
        except TypeError:
            raise TypeError(
                f"[{index!r}] is no rank: {self._whose_ranks()}; write group[2], group[0:2], or group.execute_on(0, 3)"
            ) from None
        ranks = chosen if isinstance(chosen, list) else [chosen]
        if not ranks:
            assert isinstance(index, slice)
            steps = (index.start, index.stop) if index.step is None else (index.start, index.stop, index.step)
            wanted = ":".join("" if step is None else str(step) for step in steps)
            raise IndexError(f"[{wanted}] selects no rank: {self._whose_ranks()}")
        return WorkerGroup(self._members, self._worker_cls, ranks, self._ready)

    def _whose_ranks(self) -> str:
        whole, name = self._members.size, self._members.name
        if len(self._ranks) == whole:
            return f"group '{name}' has rank{'s' * (whole > 1)} {fold_ranks(self._ranks)}"
        places = f"places 0-{len(self._ranks) - 1}" if len(self._ranks) > 1 else "place 0"
        return f"this view of group '{name}' has {places}, which are of ranks {fold_ranks(self._ranks)}"

    def __len__(self) -> int:
        return len(self._ranks)

    def any(self, *, in_flight: int | None = None, key: Hashable = None, stall_timeout: float | None = None) -> AnyRank:
        """Return an object that makes each call on one rank of this view: the live rank with the fewest open calls
        made in this way.

        If a rank dies, or is silent for ``stall_timeout``, another rank takes over its calls to ``idempotent`` methods,
        including streams, at most once per call; other calls fail. Ranks that are being restarted get no calls while
        others are alive. If the class has a public method ``any``, ``group.any`` is that method, and this method is
        available as ``WorkerGroup.any(group)``.

        Args:
            in_flight: maximum number of a rank's open calls; when all ranks have reached it, further calls wait in
                order.
            key: key of a conversation, whose calls all go to the same rank while it is alive.
            stall_timeout: seconds for which a rank with an outstanding answer or item may be silent; after that, its
                calls are considered lost.

        Raises:
            ClosedError: the group is closed.
            TypeError: ``key`` cannot be hashed.
            ValueError: ``in_flight`` is below 1, or ``stall_timeout`` is not above 0.
        """
        members = self._members
        check_options(in_flight, key, stall_timeout)
        if members.closed:
            raise ClosedError(f"group '{members.name}' is closed: none of its ranks can be called any more")
        if members.pool is None:
            with members._lock:
                if members.pool is None:
                    members.pool = PoolCalls(members)
        assert isinstance(members.pool, PoolCalls)
        return AnyRank(members.pool, self._method, self._ranks, in_flight, key, stall_timeout)

    def _method(self, name: str) -> PublicMethod:
        """Return the public method with that name.

        Raises:
            AttributeError, TypeError, ValueError: there is no such method, or it cannot be called.
        """
        method = public_methods(self._worker_cls).get(name)
        if method is None:
            raise self._missing(name)
        if method.is_plain_generator:
            raise _no_stream(f"{self._members.name}.{name}()")
        return method

    # -- facts --------------------------------------------------------------------------------------------------

    @property
    def worker_cls_name(self) -> str:
        """Name of the worker class."""
        return self._worker_cls.__name__

    @property
    def worker_group_name(self) -> str:
        """Name by which other processes find the group."""
        return self._members.name

    @property
    def worker_info_list(self) -> list[WorkerRank]:
        """Location of each rank of this view; empty until the workers have started (RLinf's dialect waits for them)."""
        if dialect.is_rlinf and self._members.launching is not None:
            self._members.launching.wait()
        infos = self._members.infos
        return [WorkerRank(infos[rank], rank) for rank in self._ranks] if infos else []

    @property
    def log_paths(self) -> list[str]:
        """Path of each rank's stderr log on its node."""
        return [self._members.logs[rank] for rank in self._ranks] if self._members.logs else []

    # -- calls --------------------------------------------------------------------------------------------------

    @overload
    def call(  # type: ignore[overload-overlap]
        self, method: Callable[Concatenate[W_co, P], AsyncIterator[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Stream[R]: ...
    @overload
    def call(
        self, method: Callable[Concatenate[W_co, P], Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Handle[R]: ...
    @overload
    def call(self, method: Callable[Concatenate[W_co, P], R], /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]: ...
    def call(self, method: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the worker class: ``group.call(Rollout.step, x)``.

        Does the same as ``group.step(x)``, but type checkers see the method, check the arguments and know the result's
        type. If the class has a public method ``call``, ``group.call`` is that method, and this method is available as
        ``WorkerGroup.call(group, Rollout.step, x)``.

        Args:
            method: a public method of the worker class or of a base class; the call uses the worker class's method of
                that name.

        Returns:
            A ``Handle``, or a ``Stream`` for an async generator.

        Raises:
            TypeError: the argument is not a method of the worker class.
            ValueError: the method is not public.
        """
        found = _name_of(self._worker_cls, method)
        return self._call(found.name, found.streams, args, kwargs)

    def _call(self, method: str, streams: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Handle | Stream:
        repeats = self._members.supervisor is not None and public_methods(self._worker_cls)[method].is_idempotent
        if not args and not kwargs and not streams and not repeats:
            handle = Handle(self._callee, method)
            self._members.call(self._callee, handle, method, _NO_ARGUMENTS)
            return handle
        shares = per_rank(args, kwargs, len(self._ranks))
        describe = f"argument of {self._members.name}.{method}()"
        encoded = [
            codec.encode_arguments(*share, describe=describe, root=("args", "kwargs"))
            for share in (((args, kwargs),) if shares is None else shares)
        ]
        handler: Handle | StreamCall = (StreamCall if streams else Handle)(self._callee, method)
        if repeats:  # copy the arguments, which may change before the call is sent again
            encoded = [each if isinstance(each, bytes) else each.to_bytes() for each in encoded]
        self._members.call(self._callee, handler, method, encoded, same=shares is None, repeats=repeats)
        return Stream(handler) if isinstance(handler, StreamCall) else handler

    def __getattr__(self, name: str) -> Any:
        raise self._missing(name)

    def _missing(self, name: str) -> Exception:
        if name.startswith("__"):
            return AttributeError(name)
        if name.startswith("_") and callable(getattr(self._worker_cls, name, None)):
            return ValueError(f"{name} of {self._worker_cls.__name__} is hidden: only public methods can be called")
        own, inherited = _own_methods_first(self._worker_cls)
        others = [*inherited, *(known for known in dir(WorkerGroup) if not known.startswith("_"))]
        hint = did_you_mean(name, own) or did_you_mean(name, others)
        return AttributeError(
            f"{self._worker_cls.__name__} has no public method {name!r}{hint}; it has {', '.join(own) or 'none'}, "
            f"and as every Worker {', '.join(inherited)}"
        )

    # -- restarts -----------------------------------------------------------------------------------------------

    def restart(self, *ranks: int) -> NoneOrWork:
        """Kill these ranks (by default all ranks of this view) if they are alive, and restart them.

        The restart does not count towards ``max_restarts``, and also works for a rank that has reached that limit. In a
        coroutine it returns a ``Work`` to await, elsewhere it blocks.

        Raises:
            ConfigError: the group was launched without ``restart=`` or by another process, so the constructor arguments
                were not kept.
            WorkerDied: a rank could not be restarted.
        """
        supervisor = self._members.supervisor
        if supervisor is None:
            raise ConfigError(
                f"group '{self._members.name}' cannot be restarted: launch it with restart='rank' (with max_restarts=0 "
                "only by hand), and call restart() where it was launched"
            )
        done: NoneOrWork = blocking(supervisor.restart(self.execute_on(*ranks)._ranks if ranks else self._ranks))
        return done

    @property
    def away(self) -> list[int]:
        """Ranks of this view that are being restarted or are about to be restarted.

        Raises:
            ConfigError: another process launched the group, and only that process has this information.
        """
        self._check_own("away")
        supervisor = self._members.supervisor
        return [] if supervisor is None else [rank for rank in self._ranks if rank in supervisor.away]

    def on_death(self, callback: Callable[[WorkerDied], object]) -> None:
        """Register a callback for ranks that die or are lost with their node, with or without ``restart=``.

        The callback receives a ``WorkerDied``, with ``rank``, ``verdict`` and further facts. If ``died.returns`` is
        true, the rank will be restarted; if that restart is later abandoned, the same death is reported again with
        ``returns`` false. The callback runs on the thread of the cluster's loop and must not block.

        Raises:
            ConfigError: another process launched the group.
        """
        self._check_own("on_death()")
        self._members.on_death.append(_callable(callback, "on_death"))

    def on_restart(self, callback: Callable[[Restart], object]) -> None:
        """Register a callback that runs at each restart, after all workers' ``on_restart`` and before waiting calls are
        sent.

        The callback receives the same argument as the workers' hooks; ``restart.ranks`` are the restarted ranks. It
        runs on the thread of the cluster's loop and must not block.

        Raises:
            ConfigError: another process launched the group.
        """
        self._check_own("on_restart()")
        self._members.on_restart.append(_callable(callback, "on_restart"))

    def _check_own(self, what: str) -> None:
        if self._members.launching is None:
            raise ConfigError(f"{what} of group '{self._members.name}' is for the process that has launched the group")

    # -- close ------------------------------------------------------------------------------------------------

    def close(self, grace: float | None = None) -> NoneOrWork:
        """Shut down the workers: cancel open calls, then run ``on_close`` and exit functions.

        After ``grace`` seconds (``launch(close_grace=)``, ``RLINF_CLOSE_GRACE_S``) the log names the code that is still
        running, and the workers are killed. A ``def`` method may use only a fifth of the grace; a stopped process is
        also killed after that time.

        Idempotent. In a coroutine it returns a ``Work`` to await, elsewhere it blocks. Afterwards the group's name can
        be reused.

        Raises:
            TypeError: this object is a view of only some ranks.
        """
        self._check_whole()
        done: NoneOrWork = blocking(start_closing(self._members, grace))
        return done

    _close = close

    def _check_whole(self) -> None:
        if len(self._ranks) != self._members.size:
            raise TypeError(f"{self!r} is a view, and ranks are not closed one by one: close the group itself")

    @classmethod
    def from_group_name(
        cls,
        worker_cls: type[W],
        group_name: str,
        *,
        cluster: registry.HasClient | None = None,
        timeout: float | None = None,
    ) -> WorkerGroup[W]:
        """Return the group with that name, launched by another process; wait for it if it does not exist yet.

        Returns:
            The group. In a coroutine, a ``Work`` that resolves to it; type checkers see a group, which can also be
            awaited.

        Raises:
            RuntimeError: ``cluster=`` was not given, and this process does not have exactly one open cluster.
            DeadlineExceeded: there was no such group within ``timeout`` seconds, by default ``RLINF_NAME_TIMEOUT_S``;
                the error lists the existing groups.
            ClosedError: the group with that name is closed.
        """
        client = registry.client_of(cluster)
        what = f"a group named '{group_name}'"
        finding = _find(cls, client, worker_cls, group_name, timeout)
        group: WorkerGroup[W] = blocking(client.run(finding, what=what, abandonable=True))
        return group

    def __reduce__(self) -> Any:
        raise TypeError(
            f"a WorkerGroup cannot travel: pass its name, {self._members.name!r}, and find it there with "
            "WorkerGroup.from_group_name(worker_cls, name)"
        )


async def _find(
    cls: type[WorkerGroup[Any]], client: NodeClient, worker_cls: type[W], name: str, timeout: float | None
) -> WorkerGroup[W]:
    roster = await find_name(client, "group", name, timeout)
    members = Members(client, name, len(roster))
    # The group of a worker's subprocesses, which join one by one, has number 0.
    members.number = roster[0].get("group", 0) if roster else 0
    members.deadlines.begin(CallDeadline.of(None), None)
    infos = [info_from(entry["info"], entry["pid"]) for entry in roster]
    members.start([entry["endpoint"] for entry in roster], infos, [entry["log"] for entry in roster])
    return cls(members, worker_cls)


def start_closing(members: Members, grace: float | None = None) -> Work[None]:
    """Start closing a group and return the ``Work``; later calls return the same ``Work``."""
    with members._lock:
        if members.closing is None or (members.closing.done() and not members.closed):
            grace = members.close_grace if grace is None else grace
            members.closing = members.client.run(_close(members, grace), what=f"the closing of group '{members.name}'")
        return members.closing


async def _close(members: Members, grace: float) -> None:
    """Close a group on all its nodes; lost or unresponsive nodes are left to their guardians."""
    members.close()
    try:
        async with asyncio.timeout(grace + _CLOSE_ANSWER_S):
            await _close_in_order(members, grace)
    except TimeoutError:
        logger.warning("group '%s' could not be closed in order within %g s", members.name, grace + _CLOSE_ANSWER_S)


async def _close_in_order(members: Members, grace: float) -> None:
    client = members.client
    if client.closed is not None:
        return
    if members.launching is not None and not members.launching.done():
        members.launching.cancel()
        with contextlib.suppress(Exception):  # a failed launch informs its callers and cleans up by itself
            await members.launching.async_wait()
    if not members.number:
        return
    nodes = {frames.node_of(endpoint) for endpoint in members.endpoints or ()}
    # Add the nodes of ranks that are still starting.
    nodes |= {placement.cluster_node_rank for placement in members.placements}
    close = operations.CloseGroup(members.name, members.number, grace)
    requests: list[Work[Any]] = [client.request(close, node=node) for node in nodes if node not in client.lost_nodes]
    for request in (*requests, client.request(operations.Release("group", members.number), node=0)):
        try:
            await request.async_wait()
        except (NodeLost, ClosedError):
            continue


def info_from(facts: dict[str, Any], pid: int) -> WorkerInfo:
    """Return a ``WorkerInfo`` from plain data."""
    return read_worker({**facts, "pid": pid})


@dataclass(frozen=True)
class PublicMethod:
    """A public method of the worker class, as offered by the group."""

    name: str
    streams: bool

    is_plain_generator: bool = False
    is_idempotent: bool = False

    def bind(self, group: WorkerGroup) -> GroupMethod:
        kind = _PlainGenerator if self.is_plain_generator else GroupMethod
        return kind(group, self.name, self.streams)


class GroupMethod:
    # The object ``group.step``, which calls ``step`` on every rank of the group. It has the method's docstring.

    __slots__ = ("_group", "_name", "_streams")

    def __init__(self, group: WorkerGroup, name: str, streams: bool) -> None:
        self._group = group
        self._name = name
        self._streams = streams

    def __repr__(self) -> str:
        return f"<GroupMethod {self._group.worker_group_name}.{self._name}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._group._call(self._name, self._streams, args, kwargs)

    @property
    def __name__(self) -> str:
        return self._name

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        method: Callable[..., Any] = getattr(self._group._worker_cls, self._name)
        return method

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        return self.__wrapped__.__doc__

    @property
    def __signature__(self) -> inspect.Signature:
        method = self.__wrapped__
        static = inspect.getattr_static(self._group._worker_cls, self._name)
        if inspect.isfunction(method) and not isinstance(static, staticmethod):
            method = MethodType(method, self._group)
        return inspect.signature(method)


class _PlainGenerator(GroupMethod):
    # A ``def`` generator method, which cannot be called because its result could not be sent. Add no docstring here,
    # because it would hide the property ``__doc__``.

    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise _no_stream(f"{self._group.worker_group_name}.{self._name}()")


def _callable(callback: Any, what: str) -> Any:
    if not callable(callback):
        raise TypeError(f"{what}() takes a function to call, got {callback!r}")
    return callback


def _no_stream(what: str) -> TypeError:
    return TypeError(f"{what} is a plain generator: make it `async def`, and its items are streamed")


def _own_methods_first(worker_cls: type) -> tuple[list[str], list[str]]:
    base = next((cls for cls in worker_cls.__mro__ if cls.__module__ == "rlinf_async.worker"), object)
    own: list[str] = []
    inherited: list[str] = []
    for name in public_methods(worker_cls):
        owner = next(cls for cls in worker_cls.__mro__ if name in vars(cls))
        (inherited if owner in base.__mro__ else own).append(name)
    return own, inherited


_methods: dict[type, dict[str, PublicMethod]] = {}


def public_methods(worker_cls: type) -> dict[str, PublicMethod]:
    """Return a dict that maps names to a worker class's public methods.

    Raises:
        ValueError: a method has a name that the group itself needs.
    """
    known = _methods.get(worker_cls)
    if known is not None:
        return known
    found: dict[str, PublicMethod] = {}
    for name in dir(worker_cls):
        attribute = inspect.getattr_static(worker_cls, name)
        if name.startswith("_") or isinstance(attribute, property | type):
            continue
        member = getattr(worker_cls, name)
        if not callable(member) or name in ("timer", "create_group", "on_restart", "on_close"):
            continue
        if hasattr(WorkerGroup, name) and name not in _SHADOWED:
            taken = [each for each in dir(WorkerGroup) if not each.startswith("_") and each not in _SHADOWED]
            raise ValueError(
                f"{worker_cls.__name__}.{name} has the name of a method of WorkerGroup: rename it "
                f"(taken are {', '.join(taken)})"
            )
        streams, yields = inspect.isasyncgenfunction(member), inspect.isgeneratorfunction(member)
        found[name] = PublicMethod(name, streams, yields, is_idempotent(member))
    _methods[worker_cls] = found
    return found


@functools.cache
def _functions(worker_cls: type) -> dict[Any, PublicMethod]:
    """Return a dict that maps each function of the class and its base classes to its public method."""
    return {
        function: method
        for name, method in public_methods(worker_cls).items()
        if not method.is_plain_generator
        for owner in worker_cls.__mro__
        if inspect.isroutine(function := getattr(owner, name, None))
    }


def _name_of(worker_cls: type, method: Any) -> PublicMethod:
    """Return the public method for a function of the worker class; raise as ``WorkerGroup.call`` does."""
    try:
        return _functions(worker_cls)[method]
    except (KeyError, TypeError):  # the argument is not a known function, or cannot be hashed
        pass
    name = getattr(method, "__name__", None)
    known = public_methods(worker_cls)
    if isinstance(name, str) and name.startswith("_") and getattr(worker_cls, name, None) is method:
        raise ValueError(f"{name} of {worker_cls.__name__} is hidden: only public methods can be called")
    given = f"{method.__module__}.{method.__qualname__}" if inspect.isfunction(method) else repr(method)
    wanted = next((each for each in (name, method) if isinstance(each, str) and each in known), None)
    if wanted is None:
        hint = did_you_mean(method, known) if isinstance(method, str) else ""
        fix = f"it has {', '.join(known)}"
    elif known[wanted].is_plain_generator:
        raise _no_stream(f"{worker_cls.__name__}.{wanted}()")
    else:
        hint = ""
        fix = f"write {worker_cls.__name__}.{wanted}, of the class that this group was launched or found with"
    raise TypeError(f"call() takes a public method of {worker_cls.__name__}, and {given} is none{hint}: {fix}")
