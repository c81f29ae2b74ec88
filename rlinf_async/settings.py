"""Settings: timeouts and limits that users may change, each through an environment variable.

A process uses the value that a variable has at the time of reading. Workers and nodes inherit the driver's values, and
``rlinf-launch`` exports every ``RLINF_*`` variable::

    RLINF_NODE_LINK_TIMEOUT_S=60 rlinf-launch --hosts nodes.txt train.py

``check()`` reads all variables, so that an invalid value is an error at the start and not in the middle of a run.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from rlinf_async.errors import ConfigError


@dataclass(eq=False)
class Setting:
    """A number that users may change.

    Attributes:
        default: value used if the variable is unset or empty.
        minimum: smallest allowed value.
        maximum: largest allowed value.
        about: one line of documentation.
        variable: environment variable, whose name ends with the unit: ``RLINF_CLOSE_GRACE_S``.
    """

    default: float
    minimum: float
    maximum: float
    about: str
    variable: str = ""

    @property
    def unit(self) -> str:
        """Return the unit as a word for the documentation."""
        last = self.variable.rpartition("_")[2].lower()
        return {"s": "seconds", "once": "hosts"}.get(last, last)

    def __call__(self, environ: Mapping[str, str] = os.environ, place: str = "in the environment") -> float:
        """Return the current value.

        Raises:
            ConfigError: the variable is not a number, or is out of bounds; the error names its place.
        """
        text = environ.get(self.variable, "").strip()
        if not text:
            return self.default
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not self.minimum <= value <= self.maximum:
            raise ConfigError(
                f"{self.variable}={text!r} {place}: a number of {self.unit} from {self.minimum:.12g} to "
                f"{self.maximum:.12g} is wanted ({self.about}); unset it for the default, {self.default:.12g}"
            )
        return value


def table() -> str:
    """Return every setting as a row of ``docs/settings.md``."""
    rows = ["| variable | default | from | to | unit | what it sets |", "|---|---|---|---|---|---|"]
    for setting in ALL:
        numbers = " | ".join(f"{number:.12g}" for number in (setting.default, setting.minimum, setting.maximum))
        rows.append(f"| `{setting.variable}` | {numbers} | {setting.unit} | {setting.about} |")
    return "\n".join(rows)


def adopt(environ: Mapping[str, str]) -> None:
    """Adopt and check another process's settings; a node's daemon does so with its driver's.

    Raises:
        ConfigError: a setting is not a number, or is out of bounds.
    """
    os.environ.update({setting.variable: environ[setting.variable] for setting in ALL if setting.variable in environ})
    check()


def variables_of(values: Mapping[str, float], place: str) -> dict[str, str]:
    """Return the environment variables that give settings these values.

    Args:
        values: maps the name of a variable, such as ``RLINF_LEASE_S``, or its suffix, such as ``LEASE_S``, to its
            value.
        place: origin of the values for errors, such as ``in SimCluster(settings=)``.

    Raises:
        ConfigError: a setting does not exist, or its value is not a number, or is out of bounds.
    """
    found: dict[str, str] = {}
    for name, value in values.items():
        short = str(name).upper().removeprefix("RLINF_")
        if (setting := _BY_NAME.get(short)) is None:
            near = [f"RLINF_{each}" for each in get_close_matches(short, _BY_NAME, 1)]
            meant = f"; did you mean {near[0]}?" if near else "; docs/settings.md lists all"
            raise ConfigError(f"{name!r} {place}: there is no such setting{meant}")
        found[setting.variable] = str(value)
        setting(found, place)
    return found


def check(environ: Mapping[str, str] = os.environ) -> None:
    """Read and check every setting.

    Raises:
        ConfigError: a setting is not a number, or is out of bounds.
    """
    for setting in ALL:
        setting(environ)


# Calls and their failures

ABORT_GRACE_S: Final = Setting(5, 0.01, 3600, "how long a rank may stay in a failed or aborted call before it is named")
CALL_CHECK_S: Final = Setting(0.05, 0.001, 60, "how long a daemon that tells of open calls waits for what callers know")
CALL_TIMEOUT_S: Final = Setting(
    0, 0, 1e7, "how long a call of a group may take, 0 for ever; launch(call_timeout=) wins"
)
COLLECTIVE_TIMEOUT_S: Final = Setting(30, 0.05, 86400, "how long a collective may wait for a rank that has failed")
POST_MORTEM_S: Final = Setting(
    0, 0, 1e7, "how long a method that has raised waits for a debugger before its error is told; 0: not at all"
)
UNOBSERVED_ERROR_S: Final = Setting(
    1.0,
    0,
    86400,
    "how long the error of a call may lie about unawaited before it is logged, and ends waits where fail_fast is set",
)
STREAM_ITEMS: Final = Setting(16, 1, 1_000_000, "how many items one rank of a stream may send ahead of its consumer")

# Waits

NAME_TIMEOUT_S: Final = Setting(120, 0, 1e7, "how long a group or channel is waited for whose name does not exist")
INSPECTION_TIMEOUT_S: Final = Setting(
    1, 0.01, 3600, "how long a process may take to tell what it does; then its stacks are read, which takes 1 s more"
)
WAIT_WARNING_S: Final = Setting(60, 0.01, 1e7, "how long something is waited for until a warning says so")
WAIT_WARNING_2_S: Final = Setting(300, 0.01, 1e7, "the same, for the second time")
WAIT_WARNING_3_S: Final = Setting(1800, 0.01, 1e7, "the same, for the last time")
WAIT_ANSWER_S: Final = Setting(5, 0.01, 1e4, "how long such a warning waits for what daemons say of the other side")
LOOP_TURN_S: Final = Setting(
    5, 0.05, 1e6, "how long a user's event loop may stand still while waits in other threads and loops need it"
)

RECORDER_EVENTS: Final = Setting(
    65536, 0, 1 << 24, "how many of its latest events the flight recorder keeps of each process, of 24 bytes; 0: none"
)

# Messages, channels and the memory that they use

CHANNEL_ANSWER_TIMEOUT_S: Final = Setting(
    10, 0.05, 3600, "how long a channel may take to answer a put or get with timeout=0"
)
GPU_LINK_TIMEOUT_S: Final = Setting(
    30, 0, 3600, "how long the first message between two GPUs may take; then messages go by way of the CPU"
)
MESSAGE_WINDOW_BYTES: Final = Setting(
    65 << 20, 1 << 16, 1 << 50, "messages that one worker may send another one ahead of its receives"
)
SEGMENT_POOL_BYTES: Final = Setting(512 << 20, 0, 1 << 50, "shared memory that a process keeps for later messages")
TENSOR_POOL_BYTES: Final = Setting(
    256 << 20, 0, 1 << 50, "unused memory that a process keeps for later messages from other machines"
)

# The start

HARDWARE_PROBE_TIMEOUT_S: Final = Setting(30, 0.05, 3600, "how long finding out what hardware a node has may take")
PRELOAD_TIMEOUT_S: Final = Setting(
    120, 0, 86400, "how long modules may take that are imported before workers are forked; 0: workers import them all"
)
RENDERER_PROBE_TIMEOUT_S: Final = Setting(
    8, 0, 3600, "how long the graphics driver may take to name its devices; the first workers wait for it"
)
SSH_AT_ONCE: Final = Setting(32, 1, 10_000, "how many hosts are connected to at the same time")
WORKER_FORK_TIMEOUT_S: Final = Setting(60, 0.05, 86400, "how long the forking of a worker may take")
WORKER_IMPORT_TIMEOUT_S: Final = Setting(
    120,
    0.05,
    86400,
    "how long a start of workers waits for torch's import; from a cold network file system it takes long",
)
WORKER_JOIN_TIMEOUT_S: Final = Setting(
    30, 0.05, 86400, "how long a subprocess of a worker may take to become a worker itself"
)

# Between processes and nodes

DIRECT_ACK_S: Final = Setting(0.05, 0.001, 10, "how long a receiver may keep an acknowledgement that rides on no frame")
GREETING_TIMEOUT_S: Final = Setting(10, 0.01, 1e4, "how long a connection may take to say who it is")
LEASE_S: Final = Setting(
    15, 3, 3600, "how long nothing may come from a node until it is lost, and until one that is cut off ends itself"
)
NODE_LINK_TIMEOUT_S: Final = Setting(20, 0.05, 86400, "how long a node may take at its start to reach all other nodes")
NODE_PIECE_BYTES: Final = Setting(
    256 << 10, 1 << 12, 1 << 19, "size of the pieces in which large contents travel between nodes"
)
UNAUTHENTICATED_CONNECTIONS: Final = Setting(
    256, 1, 100_000, "how many of a node's connections may not have said yet who they are"
)

# The end

CLOSE_GRACE_S: Final = Setting(
    10, 0, 86400, "how long workers of a closed group have for on_close and exit functions; launch(close_grace=) wins"
)
CLOSE_TIMEOUT_S: Final = Setting(
    8, 0.05, 86400, "how long closing a cluster waits for its groups beyond their grace; then it ends nodes"
)
EXIT_REPORT_LINES: Final = Setting(50, 1, 100_000, "how many of a worker's last lines are told with its death")
NODE_STOP_GRACE_S: Final = Setting(15, 0.05, 86400, "how long nodes have for an orderly end")

# Output, logs and traces

KEPT_RUNS: Final = Setting(
    20,
    1,
    1_000_000,
    "how many runs' logs stay in the temporary directory: the newest with a bundle, and as many of the others",
)
OUTPUT_BUFFER_BYTES: Final = Setting(1 << 20, 1 << 12, 1 << 30, "lines that wait for a terminal that is not read")
OUTPUT_END_S: Final = Setting(2, 0, 3600, "what the end of a cluster gives lines that wait for a terminal")
TRACE_BUFFER_SPANS: Final = Setting(
    32768, 4096, 1 << 30, "how many spans a traced process keeps until its daemon reads them; more are only counted"
)
TRACE_COLLECT_TIMEOUT_S: Final = Setting(2, 0.05, 3600, "how long collecting a trace waits for a node that is silent")

_BY_NAME: Final = {name: value for name, value in globals().items() if isinstance(value, Setting)}
for _name, _setting in _BY_NAME.items():
    _setting.variable = f"RLINF_{_name}"

ALL: Final = tuple(sorted(_BY_NAME.values(), key=lambda setting: setting.variable.lower()))
"""Every setting, in the order of the documentation."""
