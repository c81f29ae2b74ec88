"""Settings: the timeouts and limits that a user may change, one environment variable each.

A variable counts in the process that reads it when it is read; workers and nodes inherit the driver's, and
``rlinf-launch`` exports every ``RLINF_*``::

    RLINF_CONNECT_TIMEOUT_S=10 rlinf-launch --hosts nodes.txt train.py

``check()`` reads all of them, so that a value that cannot be is an error at the start and not in the middle of a run.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rlinf_async.errors import ConfigError


@dataclass(frozen=True)
class Setting:
    """A number that a user may change.

    Attributes:
        name: in lower case, with its unit at the end: ``connect_timeout_s``.
        unit: as the documents write it.
        default: where the variable is not set or empty.
        minimum: the least value that is taken.
        maximum: the largest one.
        about: one line for the documents.
    """

    name: str
    unit: str
    default: float
    minimum: float
    maximum: float
    about: str

    @property
    def variable(self) -> str:
        """The environment variable: ``RLINF_CONNECT_TIMEOUT_S``."""
        return f"RLINF_{self.name.upper()}"

    def __call__(self, environ: Mapping[str, str] = os.environ) -> float:
        """The value in force.

        Raises:
            ConfigError: the variable is no number, or is out of bounds.
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
                f"{self.variable}={text!r} in the environment: a number of {self.unit} from {self.minimum:.12g} to "
                f"{self.maximum:.12g} is wanted ({self.about}); unset it for the default, {self.default:.12g}"
            )
        return value


def table() -> str:
    """Every setting as a row of ``docs/settings.md``."""
    rows = ["| variable | default | from | to | unit | what it sets |", "|---|---|---|---|---|---|"]
    for setting in ALL:
        numbers = " | ".join(f"{number:.12g}" for number in (setting.default, setting.minimum, setting.maximum))
        rows.append(f"| `{setting.variable}` | {numbers} | {setting.unit} | {setting.about} |")
    return "\n".join(rows)


def check(environ: Mapping[str, str] = os.environ) -> None:
    """Reads every setting.

    Raises:
        ConfigError: one of them is no number, or is out of bounds.
    """
    for setting in ALL:
        setting(environ)


ABORT_GRACE_S: Final = Setting(
    "abort_grace_s", "seconds", 5, 0.01, 3600, "how long a rank may stay in a failed or aborted call before it is named"
)
COLLECTIVE_TIMEOUT_S: Final = Setting(
    "collective_timeout_s", "seconds", 30, 0.05, 86400, "how long a collective may wait for a rank that has failed"
)
DIRECT_ACK_S: Final = Setting(
    "direct_ack_s", "seconds", 0.05, 0.001, 10, "how long a receiver may keep an acknowledgement that rides on no frame"
)

OUTPUT_BUFFER_BYTES: Final = Setting(
    "output_buffer_bytes",
    "bytes",
    1 << 20,
    1 << 12,
    1 << 30,
    "lines that wait for a terminal that is not read",
)
OUTPUT_END_S: Final = Setting(
    "output_end_s", "seconds", 2, 0, 3600, "what the end of a cluster gives lines that wait for a terminal"
)

CALL_CHECK_S: Final = Setting(
    "call_check_s", "seconds", 0.05, 0.001, 60, "how long a daemon that tells of open calls waits for what callers know"
)

KEPT_RUNS: Final = Setting("kept_runs", "runs", 20, 1, 1_000_000, "how many runs' logs stay in the temporary directory")

WAIT_WARNING_S: Final = Setting(
    "wait_warning_s", "seconds", 60, 0.01, 1e7, "how long something is waited for until a warning says so"
)
WAIT_WARNING_2_S: Final = Setting("wait_warning_2_s", "seconds", 300, 0.01, 1e7, "the same, for the second time")
WAIT_WARNING_3_S: Final = Setting("wait_warning_3_s", "seconds", 1800, 0.01, 1e7, "the same, for the last time")
WAIT_ANSWER_S: Final = Setting(
    "wait_answer_s", "seconds", 5, 0.01, 1e4, "how long such a warning waits for what daemons say of the other side"
)

UNOBSERVED_ERROR_S: Final = Setting(
    "unobserved_error_s",
    "seconds",
    1.0,
    0,
    86400,
    "how long the error of a call may lie about unawaited before it is logged, and ends waits where fail_fast is set",
)

LOOP_TURN_S: Final = Setting(
    "loop_turn_s",
    "seconds",
    5,
    0.05,
    1e6,
    "how long a user's event loop may stand still while waits in other threads and loops need it",
)

GREETING_TIMEOUT_S: Final = Setting(
    "greeting_timeout_s", "seconds", 10, 0.01, 1e4, "how long a connection may take to say who it is"
)
UNAUTHENTICATED_CONNECTIONS: Final = Setting(
    "unauthenticated_connections",
    "connections",
    256,
    1,
    100_000,
    "how many of a node's connections may not have said yet who they are",
)

NAME_TIMEOUT_S: Final = Setting(
    "name_timeout_s", "seconds", 120, 0, 1e7, "how long a group or channel is waited for whose name does not exist"
)

ALL: Final = (
    ABORT_GRACE_S,
    CALL_CHECK_S,
    COLLECTIVE_TIMEOUT_S,
    DIRECT_ACK_S,
    UNOBSERVED_ERROR_S,
    GREETING_TIMEOUT_S,
    KEPT_RUNS,
    LOOP_TURN_S,
    OUTPUT_BUFFER_BYTES,
    OUTPUT_END_S,
    UNAUTHENTICATED_CONNECTIONS,
    NAME_TIMEOUT_S,
    WAIT_WARNING_S,
    WAIT_WARNING_2_S,
    WAIT_WARNING_3_S,
    WAIT_ANSWER_S,
)
"""Every setting, in the order of the documents."""
