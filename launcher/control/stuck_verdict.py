"""``rlinf-ctl stuck``: prints a verdict on a run from two reports, taken half a second apart."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from rlinf_async._inspection.state.run_report import to_data
from rlinf_async._inspection.state.verdict import Verdict, judge, render

from .attachment import Attachment
from .run_view import RunView, look
from .stack_text import show_missing
from .text_output import TextOutput

_ASK_AGAIN_S: Final = 0.5


async def show_verdict(attachment: Attachment, output: TextOutput) -> bool:
    """Print the verdict on a run; return False if it is stuck."""
    verdict, after = await look_twice(attachment)
    if output.as_json:
        output.json(verdict_data(verdict, after))
    else:
        output.line(render(verdict))
        show_missing(after, output)
    return not verdict.is_stuck


async def look_twice(attachment: Attachment) -> tuple[Verdict, RunView]:
    """Return the verdict on a run, and the later of its two reports."""
    before = await _look(attachment)
    await asyncio.wait({attachment.lost}, timeout=_ASK_AGAIN_S)
    after = await _look(attachment)
    return judge(after.report, before.report), after


def verdict_data(verdict: Verdict, view: RunView) -> dict[str, Any]:
    return {"verdict": verdict.to_data(), "report": to_data(view.report)}


async def _look(attachment: Attachment) -> RunView:
    return await look(attachment, parts=["activities", "queues"])
