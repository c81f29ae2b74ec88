"""The wire protocol between processes: kinds and fields of msgpack frames, endpoint ids, routes, ``FrameReader``.

A frame is a msgpack array: its kind, the number of file descriptors sent with it, and its fields. The same bytes travel
over a UNIX socket and inside a gRPC message. A relay reads only the header of a frame, never its body::

    CALL    kind fds source route   call method credit body     caller -> daemons -> (route becomes slot) worker
    REPLY   kind fds source target  call slot status body       worker -> daemons -> caller
    CANCEL  kind 0   source route   call                        caller -> daemons -> worker
    CREDIT  kind 0   source route   call count                  caller -> daemons -> worker (streams)
    REQUEST kind fds source node    number operation fields     any endpoint -> a daemon (``_core/operations.py``)
    ANSWER  kind fds source target  number ok value             daemon -> endpoint
    EVENT   kind 0   source target  what facts                  daemon -> endpoint, or a daemon for all its processes
    HELLO   kind 0   source facts                               first frame in each direction
    FAILED  kind 0   source route   call facts                  caller -> daemons -> worker: another rank has failed
    STOP    kind 0   source grace                               daemon -> worker: shut down in order
    GONE    kind 0   source endpoint ended                      daemon -> daemons: this endpoint has ended
    MESSAGE kind fds source route   facts body                  worker -> daemons -> (route becomes slot) worker
    PUT     kind fds source queue   channel number key weight mode body         client -> the queue's daemon
    GET     kind 0   source queue   channel number key target taken             likewise
    GIVE    kind fds source target  channel number more weight redelivered body that daemon -> client
    QUEUE   kind 0   source place   channel what facts                          both ways: other channel messages
    DIRECT  kind 1   source target                              worker -> daemon -> caller on its node: a socket
    SETTLED kind 0   source calls                               worker -> daemon: [source, call, ...] answered directly
    PENDING kind 0   source pending answered                    caller -> daemon: calls that bypassed it
    RESUME  kind 0   source target owner received               process -> daemon -> process: their socket broke
    ACK     kind 0   received about                             both ends of one socket: retransmission
    RESTART kind 0                                              (``_core/resend.py``)
    PIECE   kind 0   bytes

An *endpoint* is a process that has a socket to its node's daemon: a driver or a worker. Its id says where it lives:
``node << 32 | number``; number 0 is the node's daemon itself. A *route* names the targets of a call, grouped by node:
``[[node, [number, slot, number, slot, ...]], ...]``; a *slot* is a target's place in the caller's list of ranks. A
*body* is bytes; or an int, the size of the sealed memory whose descriptor is sent with the frame; or, only between
nodes, ``[transfer, size]``, which means that the body arrives in pieces on the bulk stream.

A worker hands out its own sockets (DIRECT). Small CALLs and their REPLYs, CANCELs and CREDITs travel over them and
bypass the daemon. PENDING reports such calls afterwards: ``pending`` lists ``[number, slot, call, method]`` of each
call that is still open; ``answered`` lists ``[number, call, ...]`` of calls that were reported and have since been
answered.

If such a socket breaks while both processes are alive, each tells the other, through the daemon, how many frames it has
received (RESUME; ``owner`` is the worker that created the socket). The missing frames are then also sent through the
daemon. ``received`` is -1 if the other process has ended.

The facts of a MESSAGE are described in ``_messaging/state/message_facts.py``. If a body is a str, it is the reason why
the content is missing: no free descriptor, or no memory for it.

A channel's queue lives in one daemon (``_channels/state/queue.py``); a *client* is a process that puts or gets there.
``queue`` is that daemon's endpoint id, and ``number`` counts the client's requests to it. The ``mode`` of a PUT says
whether it waits for room, or was complete once sent. The ``target`` of a GET is the weight of a batch; ``[weight]`` for
a batch of items that are available now; None for one item; -1 for one item that is available now; or ``[count, mode]``.
The mode is WAIT for exactly ``count`` items; NOWAIT for exactly ``count`` that are available now; SOME for up to
``count`` that are available now; READ for up to ``count``, for a loop that takes them one by one; READ_SHARED likewise,
but only one item if there are other consumers; LEASE for a lease of ``count`` items, with its seconds as a third
element. ``taken`` lists ``[number, count]``: the client has the first ``count`` items of that get.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any, Final

import msgpack

PROTOCOL: Final = 7  # version of this protocol; both sides must have the same

CALL: Final = 1
REPLY: Final = 2
CANCEL: Final = 3
CREDIT: Final = 4
REQUEST: Final = 5
ANSWER: Final = 6
EVENT: Final = 7
HELLO: Final = 8
STOP: Final = 9
GONE: Final = 10
MESSAGE: Final = 11
PUT: Final = 12
GET: Final = 13
GIVE: Final = 14
QUEUE: Final = 15
DIRECT: Final = 16
SETTLED: Final = 17
PENDING: Final = 18
FAILED: Final = 20
RESUME: Final = 21
# The first kind of control frame. Control frames concern only one socket and are not counted.
ACK: Final = 22

# Subjects of an ACK: this socket; this socket, whose later frames were lost; the other socket between the two
# processes.
OF_THIS: Final = 0
LOST: Final = 1
OF_SIBLING: Final = 2

RESTART: Final = 23
PIECE: Final = 24

# Modes of a PUT: wait for room; fail if there is none; already sent, and stored once there is room.
WAIT: Final = 0
NOWAIT: Final = 1
SENT: Final = 2

# Modes of a GET for several items, in addition to ``WAIT`` and ``NOWAIT``.
SOME: Final = 2
READ: Final = 3
READ_SHARED: Final = 4
LEASE: Final = 5

NOW: Final = -1  # ``target`` of a GET that does not wait

# A body larger than this travels as sealed memory within a machine, and on the bulk stream between machines.
MAX_INLINE_BYTES: Final = 64 * 1024

# A larger body is lost if its receiver has no free descriptor.
MAX_UNSEALED_BYTES: Final = 4 << 20

# A channel item larger than this is sent in a separate frame.
MAX_BATCHED_BYTES: Final = 2048

_MAX_FDS: Final = 4

_FIRST_BUFFER_BYTES: Final = 8192
"""Initial size of a connection's buffers, which grow with its frames.

Once a block of msgpack's default size, 1.25 MiB, has been freed, malloc takes later ones from the heap, which fragments
it.
"""

# Error handler that lets any Python string travel: a path, and hence a line of a traceback, need not be UTF-8.
_UNICODE_ERRORS: Final = "surrogatepass"

# Number of fields of a frame of each kind.
LENGTHS: Final[dict[int, int]] = {
    CALL: 8,
    REPLY: 8,
    CANCEL: 5,
    CREDIT: 6,
    REQUEST: 7,
    ANSWER: 7,
    EVENT: 6,
    HELLO: 4,
    STOP: 4,
    GONE: 5,
    MESSAGE: 6,
    PUT: 10,
    GET: 9,
    GIVE: 10,
    QUEUE: 7,
    DIRECT: 4,
    SETTLED: 4,
    PENDING: 5,
    FAILED: 6,
    RESUME: 6,
    ACK: 4,
    RESTART: 2,
    PIECE: 3,
}


class Status(IntEnum):
    """The outcome of a call at one target, as given in a REPLY."""

    OK = 0
    ERROR = 1  # the body is a packed failure
    CANCELLED = 2
    ITEM = 3  # one item of a stream; more may follow
    END = 4  # end of a stream without an error
    DIED = 5  # the target's process has exited; the body is its exit report
    UNKNOWN = 6  # the target does not exist; the body says why
    LOST = 7  # the target's node is lost; the body says which and why


# Statuses as plain ints, for code that runs on every call.
OK: Final = int(Status.OK)
ITEM: Final = int(Status.ITEM)
FINAL: Final = frozenset(int(status) for status in Status) - {ITEM}
HARMLESS: Final = frozenset({OK, int(Status.CANCELLED), int(Status.END)})

Frame = Sequence[Any]


class FrameError(Exception):
    """The bytes are malformed: the other side is broken or hostile, so the connection must be closed."""


def endpoint(node: int, number: int) -> int:
    return node << 32 | number


def node_of(endpoint_id: int) -> int:
    return endpoint_id >> 32


def number_of(endpoint_id: int) -> int:
    return endpoint_id & 0xFFFFFFFF


def is_call_sound(frame: Frame) -> bool:
    """True if the number, method and credit of a CALL have the types and ranges that a worker needs."""
    call = frame[4]
    return type(call) is int and 0 <= call < 1 << 63 and type(frame[5]) is str and type(frame[6]) is int


def route_to(targets: Sequence[int], slots: Iterable[int] | None = None) -> list[list[Any]]:
    """Return a call's route to these endpoints, or only to the given slots; slot i is ``targets[i]``.

    Example:
        >>> route_to([endpoint(0, 3), endpoint(1, 1), endpoint(0, 4)])
        [[0, [3, 0, 4, 2]], [1, [1, 1]]]
    """
    nodes: dict[int, list[int]] = {}
    for slot in range(len(targets)) if slots is None else slots:
        target = targets[slot]
        nodes.setdefault(node_of(target), []).extend((number_of(target), slot))
    return [[node, slots] for node, slots in nodes.items()]


def demand_of(target: Any) -> dict[str, Any]:
    """Return a GET's demand as attributes of ``Demand`` (``_channels/state/queue_client.py``), or raise TypeError."""
    parts = target if type(target) is list else [target]
    match None if any(type(part) is bool for part in parts) else target:
        case None if target is None:
            return {}
        case int() if target >= 0:
            return {"target": target}
        case int() if target == NOW:
            return {"nowait": True}
        case [int() as weight] if weight >= 0:
            return {"target": weight, "nowait": True}
        case [int() as count, int() as mode] if count > 0 and mode in (READ, READ_SHARED):
            return {"target": count, "counted": True, "partly": True, "shared": mode == READ_SHARED, "stepwise": True}
        case [int() as count, int() as mode] if count > 0 and mode in (WAIT, NOWAIT, SOME):
            return {"target": count, "counted": True, "partly": mode == SOME, "nowait": mode != WAIT}
        case [int() as count, int() as mode, float() as lease_s] if count > 0 and mode == LEASE and lease_s >= 0:
            return {"target": count, "counted": True, "lease_s": lease_s}
    raise TypeError(f"a get with target {target!r}")


def is_for_now(target: Any) -> bool:
    return target == NOW or (type(target) is list and (len(target) == 1 or target[1] in (NOWAIT, SOME)))


def new_packer() -> msgpack.Packer:
    return msgpack.Packer(
        use_bin_type=True, autoreset=True, buf_size=_FIRST_BUFFER_BYTES, unicode_errors=_UNICODE_ERRORS
    )


def pack(value: Any) -> bytes:
    packed: bytes = msgpack.packb(value, use_bin_type=True, unicode_errors=_UNICODE_ERRORS)
    return packed


def unpack(data: bytes | memoryview) -> Any:
    try:
        return msgpack.unpackb(data, raw=False, strict_map_key=False, max_ext_len=0, unicode_errors=_UNICODE_ERRORS)
    except Exception as error:
        raise FrameError(f"not msgpack: {error}") from error


class FrameReader:
    """Parser that cuts a stream of bytes into frames.

    Lengths are checked before anything is allocated, extension types are refused, and a frame must be an array of a
    known kind and length. A hostile stream thus ends in a ``FrameError`` instead of exhausting memory.
    """

    def __init__(self, limit: int = 16 << 20) -> None:
        self._unpacker = msgpack.Unpacker(
            read_size=_FIRST_BUFFER_BYTES,
            raw=False,
            use_list=True,
            strict_map_key=False,
            unicode_errors=_UNICODE_ERRORS,
            max_buffer_size=limit,
            max_str_len=8 << 20,
            max_bin_len=8 << 20,
            max_array_len=1 << 20,
            max_map_len=1 << 16,
            max_ext_len=0,
        )

    def feed(self, data: bytes | bytearray | memoryview) -> list[list[Any]]:
        """Return the frames that these bytes complete, in order; raise FrameError if they are invalid."""
        frames: list[list[Any]] = []
        lengths = LENGTHS
        try:
            self._unpacker.feed(data)
            for frame in self._unpacker:
                if lengths[frame[0]] != len(frame) or not 0 <= frame[1] <= _MAX_FDS:
                    raise FrameError(f"bad frame of kind {frame[0]!r}")
                frames.append(frame)
        except FrameError:
            raise
        except Exception as error:
            raise FrameError(f"not a frame: {type(error).__name__}: {error}") from error
        return frames
