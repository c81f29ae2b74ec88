"""Workers' output in the driver, with each line prefixed by its worker's name; notes about ranks at a breakpoint()."""

from __future__ import annotations

import sys
from typing import Any

from rlinf_async._client.client import NodeClient
from rlinf_async._core.own_logger import own_logger
from rlinf_async._wire.terminal import Terminal

logger = own_logger(__name__)


def show_output(terminal: Terminal, facts: dict[str, Any]) -> None:
    """Queue one worker's output lines for the stream of the same name in this process."""
    stream = sys.stderr if facts["stream"] == "stderr" else sys.stdout
    prefix = f"[{facts['who']}] "
    rank = facts["who"].rpartition("@")[0].rpartition(":")[2]
    where = f": rank {rank}'s log has all of it: {facts['log']}"
    terminal.write(stream, "".join(f"{prefix}{line}\n" for line in facts["lines"]), prefix, where)


def show_debugger(client: NodeClient, facts: dict[str, Any]) -> None:
    """Log how to attach to a rank that waits in the debugger, unless an operator has stopped it."""
    if facts["where"] and not facts["attached"]:
        command = f"rlinf-ctl debug --run {client.welcome['run']} {facts['name']}"
        logger.warning("%s waits in the debugger at %s: `%s` attaches", facts["name"], facts["where"], command)
