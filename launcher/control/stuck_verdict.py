"""``rlinf-ctl stuck``: two reports of a run, half a second apart, and the verdict on them."""

from __future__ import annotations

import asyncio
from typing import Final

from rlinf_async._inspection.state.run_report import to_data
from rlinf_async._inspection.state.verdict import judge, render

from .attachment import Attachment
from .run_view import RunView, look
from .stack_text import show_missing
from .text_output import Output

_ASK_AGAIN_S: Final = 0.5


async def show_verdict(attachment: Attachment, output: Output) -> bool:
    """Says why a run stands still, or that it does not; whether it goes on."""
    before = await _look(attachment)
    await asyncio.wait({attachment.lost}, timeout=_ASK_AGAIN_S)
    after = await _look(attachment)
    verdict = judge(after.report, before.report)
    if output.as_json:
        output.json({"verdict": verdict.to_data(), "report": to_data(after.report)})
    else:
        output.line(render(verdict))
        show_missing(after, output)
    return not verdict.is_stuck


async def _look(attachment: Attachment) -> RunView:
    return await look(attachment, parts=["activities", "queues"])
