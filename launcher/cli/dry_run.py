"""``--dry-run``: describes the planned nodes, variables (secrets masked) and command lines; nothing is started."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from ..job import missing_script_text, script_command, script_is_missing
from ..options import Options
from ..remote.exported_env import shown
from ..remote.host import describe
from ..remote.plan import Node
from ..report import grid


def preview(nodes: Sequence[Node], source: str, options: Options, exported: Mapping[str, str]) -> str:
    """Hosts and how they were understood, ranks, variables with secrets masked, the exact command lines."""
    visible = [node for node in nodes if not node.hidden]
    out = [f"hosts from {source}", ""]
    out.append(
        grid(["RANK", "HOST"], [[str(node.rank), describe(node.host, is_here=node.is_here)] for node in visible])
    )
    if len(visible) < len(nodes):
        out.append("\nthis machine is not among them: a daemon without slots runs here, for the script")
    out += ["", f"variables for every node ({len(exported)})"]
    out += [f"  {name}={shown(name, value)}" for name, value in exported.items()]
    if options.sync is not None:
        out += ["", f"shipped to every other machine: {options.sync}"]
    out += ["", "commands"]
    out += [f"  {shlex.join(node.connector.argv)}" for node in nodes if not node.is_here]
    if options.script is not None:
        out.append(f"  {shlex.join(script_command(options))}")
    if script_is_missing(options):
        out += ["", *missing_script_text(options).split("\n")]
    return "\n".join(out)


def preview_facts(
    nodes: Sequence[Node], source: str, options: Options, exported: Mapping[str, str]
) -> dict[str, object]:
    """The same for ``--json``."""
    return {
        "event": "dry_run",
        "source": source,
        "nodes": [
            {
                "rank": node.rank,
                "name": node.name,
                "host": describe(node.host, is_here=node.is_here),
                "here": node.is_here,
                "hidden": node.hidden,
                "argv": None if node.is_here else list(node.connector.argv),
            }
            for node in nodes
        ],
        "env": {name: shown(name, value) for name, value in exported.items()},
        "sync": str(options.sync) if options.sync else None,
        "script": script_command(options) if options.script else None,
        "failure": missing_script_text(options) if script_is_missing(options) else None,
    }
