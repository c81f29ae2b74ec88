"""Catalogue of the requests that daemons answer: one dataclass per operation, with its fields and answer type.

A request is a REQUEST frame with the operation's name and a map of its fields, all plain data. Its answer arrives as an
ANSWER frame, immediately or later. A star marks an operation that keeps something for its requester
(``WaitingOperation``)::

    operation           fields                                      answer          asked by, for
    -- names of groups, channels and promises (of channels that have no number yet), at node 0
    Reserve *           kind name                                   int             a launch, Channel.create(), first
    Publish             kind name number roster                     Any             the same, at the end; the maker of a
                                                                                    promise: which channel fulfils it
    Find *              kind name rank after                        Any             from_group_name(), the first send,
                                                                                    connect(), a received channel;
                                                                                    a dead rank's next process
    CancelFind          kind number                                 list[str]       a lookup that timed out
    Release             kind number                                 bool            close() of a group or a channel
    JoinGroup *         name rank size entry                        None            a worker's subprocess
    RankReturned        group number rank was entry report          None            a group's owner, to every daemon:
                                                                                    a rank is back, or never (no entry)
    IsAlive             group rank                                  bool            is_worker_alive()
    ComesBack           endpoint                                    bool            an experience's daemon: a trainer
                                                                                    of a lost node
    QueueEnded          number                                      None            the daemon whose queue has ended
    PinKey              number key node                             int | None      the first put or get of a key
    -- queues, at the nodes of a channel
    HostChannel *       number name maxsize max_bytes               None            Channel.create()
    CloseChannel        number discard                              bool            close() of a channel
    CountItems          number                                      list[Any]       stats() of a channel
    -- experiences, at their nodes
    HostExperience *    number name options                         None            Experience.create()
    SetVersion          number trainer version restart              None            set_version() of an experience
    Published           group name version restart                  list[int]       publish(): which nodes follow
    FollowPublications  group                                       Any             a daemon, to every other daemon
    SettleGroups *      number take groups                          None            the end of a take
    CountSamples        number                                      dict[str, Any]  stats() of an experience
    CountEarlier        number version taken dropped                None            load_state_dict()
    HowEnded            number                                      Any             an experience's daemon: a trainer
    -- workers, at their nodes
    OpenStore *         group number                                int             a launch, at the node of rank 0
    Spawn *             group number workers env node_env python    list[list[Any]] a launch
                        config seed world_size max_concurrency
                        quiet cwd sys_path script module
                        supervised script_env close_grace
                        preload own_modules
    CloseGroup          group number grace                          None            close() of a group
    Watch *             numbers                                     None            messages: peers that are awaited
    WatchedBy *         endpoints                                   None            messages: peers that are written to
    CallsChecked        check finished                              None            the answer to ``check_calls``
    OwesCall            number source call after                    bool            a collective that a rank has left
    KillStuck           verdict                                     None            a worker that cannot continue
    FindStopped         numbers                                     list[int]       a warning: ranks that do not answer
    -- resources of a node
    FreePort                                                        int             find_free_port()
    LeasePort *         max_port                                    int             acquire_free_port()
    LockDevices *       name devices                                None            device_lock; at node 0
    UnlockDevices       number                                      list[str]       device_lock; at node 0
    ReserveLines        lines nbytes                                float           emulated networks; at node 0
    FindHardware        node_rank sections sys_path extension       list[str]       Cluster(), if there is hardware
                        python
    -- lost nodes
    ReportLink          node reason                                 None            a daemon, to node 0: a link ended
    AnswerNode                                                      None            node 0, to such a node
    NodeIsLost          epoch node reason                           None            node 0, to every daemon
    SetLease            seconds                                     None            a driver, to every daemon
    -- for people
    NodeStatus                                                      dict[str, Any]  status()
    RequestProgress     operation fields number                     str             a warning about a long wait
    QueueState          number key                                  str             a warning about a long wait
    Inspect             numbers parts                               dict[str, Any]  a report of the run, to every daemon
    Inspected           round activities                            None            every process, to its own daemon
    NodeDetails         devices                                     dict[str, Any]  an operator: logs, devices, commands
    KillRanks           numbers reason                              list[int]       an operator; a group's owner
    RestartRanks        numbers                                     list[int]       an operator
    DebugRank *         number what line                            None            an operator: a line for a debugger
    DebugSaid           operator state text                         None            a rank: its debugger's output
    RankStopped         endpoint name where attached                None            a rank: its debugger starts or ends
    ListRunFiles                                                    list[list[Any]] an operator: logs, flight recorders
    ReadRunFile         path offset nbytes                          bytes           an operator: part of one of these
    EndRun              by                                          bool            an operator
    ServeMetrics        address                                     str             a driver, to node 0: host:port
    ScrapeNode                                                      dict[str, Any]  node 0, to every daemon, per scrape
    ReadStderr                                                      list[str]       a rank: the last lines in its log
    ReportError         key text                                    None            an error that no code has awaited
    WithdrawError       key                                         None            the same error, once awaited
    -- the trace; home is the daemon that writes it
    OpenTrace           path                                        dict[str, Any]  a driver, to its daemon: home
    StartTrace          node path                                   None            the same driver, to every daemon
    ReadClock                                                       int             home, to every daemon
    WriteSpans          batch                                       None            every daemon, to home
    CollectTrace                                                    None            Tracer.finalize(), to every daemon
"""

# This module must not import ``annotations`` from ``__future__``: ``read`` checks values against annotation objects.

import inspect
import reprlib
import types
from collections.abc import Callable
from typing import Any, ClassVar, Final, Generic, TypeVar, dataclass_transform, get_args, get_origin

Answer = TypeVar("Answer")

# ``round`` of an ``Inspected`` whose sender has not read the request; it answers all rounds that are waiting for the
# sender.
ALL_ROUNDS: Final = 0


def _check_of(kind: Any) -> Callable[[Any], bool]:
    """Return a predicate that is true for values of an annotated type, as msgpack decodes them."""
    origin, inner = get_origin(kind), [_check_of(each) for each in get_args(kind)]
    if origin is types.UnionType:
        return lambda value: any(fits(value) for fits in inner)
    if origin is list:
        return lambda value: type(value) is list and all(map(inner[0], value))
    if kind is Any:
        return lambda value: True
    allowed = (int, float) if kind is float else (origin or kind,)
    return lambda value: type(value) in allowed


@dataclass_transform(frozen_default=True)
class Operation(Generic[Answer]):
    """A request that a daemon answers itself; subclasses are frozen dataclasses of plain data.

    The methods are defined here once, because having ``dataclass`` generate them per class costs 25 ms at every start.
    """

    checks: ClassVar[dict[str, Callable[[Any], bool]]]

    def __init_subclass__(cls) -> None:
        cls.checks = {field: _check_of(kind) for field, kind in inspect.get_annotations(cls).items()}

    def __init__(self, *values: Any, **fields: Any) -> None:
        self.__dict__.update(zip(self.checks, values, strict=False) if values else fields, **fields)

    def __setattr__(self, field: str, value: Any) -> None:
        raise AttributeError(f"{self!r} is frozen")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{field}={value!r}' for field, value in vars(self).items())})"


class WaitingOperation(Operation[Answer]):
    """An operation that keeps something for its requester and is refused once that process has ended.

    A request is read before its connection closes, but it is handled in a separate task, which may run only after the
    requester's cleanup.
    """


# fmt: off
class Reserve(WaitingOperation[int]): kind: str; name: str
class Publish(Operation[Any]): kind: str; name: str; number: int; roster: Any
class Find(WaitingOperation[Any]): kind: str; name: str; rank: int | None; after: int
class CancelFind(Operation[list[str]]): kind: str; number: int
class Release(Operation[bool]): kind: str; number: int
class JoinGroup(WaitingOperation[None]): name: str; rank: int; size: int; entry: dict[str, Any]
class RankReturned(Operation[None]): group: str; number: int; rank: int; was: int; entry: Any; report: Any
class IsAlive(Operation[bool]): group: str; rank: int
class ComesBack(Operation[bool]): endpoint: int
class QueueEnded(Operation[None]): number: int
class PinKey(Operation[int | None]): number: int; key: bytes; node: int

class HostChannel(WaitingOperation[None]): number: int; name: str; maxsize: int; max_bytes: int
class CloseChannel(Operation[bool]): number: int; discard: bool
class CountItems(Operation[list[Any]]): number: int

class HostExperience(WaitingOperation[None]): number: int; name: str; options: dict[str, Any]
class SetVersion(Operation[None]): number: int; trainer: str; version: int; restart: bool
class Published(Operation[list[int]]): group: str; name: str; version: int; restart: bool
class FollowPublications(Operation[Any]): group: str
class SettleGroups(WaitingOperation[None]): number: int; take: int; groups: int
class CountSamples(Operation[dict[str, Any]]): number: int
class CountEarlier(Operation[None]): number: int; version: int | None; taken: int; dropped: dict[str, int]
class HowEnded(Operation[Any]): number: int

class OpenStore(WaitingOperation[int]): group: str; number: int
class Spawn(WaitingOperation[list[list[Any]]]):
    group: str; number: int; workers: list[dict[str, Any]]; env: dict[str, str]; node_env: dict[str, str]
    python: str | None; config: str; seed: int | None; world_size: int; max_concurrency: int | None; quiet: bool
    cwd: str; sys_path: list[str]; script: str | None; module: str | None; supervised: bool
    script_env: dict[bytes, bytes | None]; close_grace: float; preload: list[str]; own_modules: list[str]
class CloseGroup(Operation[None]): group: str; number: int; grace: float
class Watch(WaitingOperation[None]): numbers: list[int]
class WatchedBy(WaitingOperation[None]): endpoints: list[int]
class CallsChecked(Operation[None]): check: int; finished: list[list[int]]
class OwesCall(Operation[bool]): number: int; source: int; call: int; after: int
class KillStuck(Operation[None]): verdict: str
class FindStopped(Operation[list[int]]): numbers: list[int]

class FreePort(Operation[int]): pass
class LeasePort(WaitingOperation[int]): max_port: int | None
class LockDevices(WaitingOperation[None]): name: str; devices: list[int]
class UnlockDevices(Operation[list[str]]): number: int
class ReserveLines(Operation[float]): lines: list[list[Any]]; nbytes: int
class FindHardware(Operation[list[str]]):
    node_rank: int; sections: list[Any]; sys_path: list[str]; extension: str; python: str | None

class ReportLink(Operation[None]): node: int; reason: str
class AnswerNode(Operation[None]): pass
class NodeIsLost(Operation[None]): epoch: int; node: int; reason: str
class SetLease(Operation[None]): seconds: float

class NodeStatus(Operation[dict[str, Any]]): pass
class RequestProgress(Operation[str]): operation: str; fields: dict[str, Any]; number: int
class QueueState(Operation[str]): number: int; key: bytes
class Inspect(Operation[dict[str, Any]]): numbers: list[int]; parts: list[str]
class Inspected(Operation[None]): round: int; activities: list[Any]
class NodeDetails(Operation[dict[str, Any]]): devices: bool
class KillRanks(Operation[list[int]]): numbers: list[int]; reason: str
class RestartRanks(Operation[list[int]]): numbers: list[int]
class DebugRank(WaitingOperation[None]): number: int; what: str; line: str
class DebugSaid(Operation[None]): operator: int; state: str; text: str
class RankStopped(Operation[None]): endpoint: int; name: str; where: str; attached: bool
class ListRunFiles(Operation[list[list[Any]]]): pass
class ReadRunFile(Operation[bytes]): path: str; offset: int; nbytes: int
class EndRun(Operation[bool]): by: str
class ServeMetrics(Operation[str]): address: str
class ScrapeNode(Operation[dict[str, Any]]): pass
class ReadStderr(Operation[list[str]]): pass
class ReportError(Operation[None]): key: str; text: str
class WithdrawError(Operation[None]): key: str

class OpenTrace(Operation[dict[str, Any]]): path: str | None
class StartTrace(Operation[None]): node: int; path: str
class ReadClock(Operation[int]): pass
class WriteSpans(Operation[None]): batch: list[Any]
class CollectTrace(Operation[None]): pass
# fmt: on


_KINDS: Final[list[type[Operation[Any]]]] = [*Operation.__subclasses__(), *WaitingOperation.__subclasses__()]
OPERATIONS: Final = {kind.__name__: kind for kind in _KINDS if kind is not WaitingOperation}


def read(name: str, fields: Any) -> Operation[Any]:
    """Return the operation that a request names; a ValueError names the unknown operation or the wrong field."""
    kind = OPERATIONS.get(name)
    if kind is None:
        raise ValueError(f"a daemon knows no operation {name!r}")
    checks = kind.checks
    if type(fields) is not dict:
        raise ValueError(f"{name}: its fields must come as a map, got {reprlib.repr(fields)}")
    if fields.keys() != checks.keys():
        for field in checks.keys() - fields.keys():
            raise ValueError(f"{name}: field {field!r} is missing")
        for field in fields.keys() - checks.keys():
            raise ValueError(f"{name}: there is no field {field!r}; its fields are: {', '.join(checks) or 'none'}")
    for field, fits in checks.items():
        if not fits(fields[field]):
            wanted = inspect.formatannotation(kind.__annotations__[field])
            raise ValueError(f"{name}: field {field!r} must be {wanted}, got {reprlib.repr(fields[field])}")
    return kind(**fields)
