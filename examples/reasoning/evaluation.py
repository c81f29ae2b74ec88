"""Evaluation on held-out problems: accuracy of the likeliest responses, and pass@k of sampled ones."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pass_at_k import mean_pass_at_k
from rows import Row
from sampler import Sampler


async def evaluate(sampler: Sampler, rows: Sequence[Row], samples: int, right_from: float) -> dict[str, float]:
    """Return ``accuracy`` and ``pass@k`` over the rows.

    Args:
        samples: responses to each problem, at the temperature of training.
        right_from: a response with this reward or more is right.
    """

    async def count_right(index: int, row: Row, count: int, temperature: float) -> int:
        group = await sampler.sample(row, index, count, temperature)
        return sum(response.reward >= right_from for response in group.responses)

    async with asyncio.TaskGroup() as tasks:
        likeliest = [tasks.create_task(count_right(index, row, 1, 0.0)) for index, row in enumerate(rows)]
        sampled = [tasks.create_task(count_right(index, row, samples, 1.0)) for index, row in enumerate(rows)]
    right = [task.result() for task in sampled]
    result = {"accuracy": sum(task.result() for task in likeliest) / len(rows)}
    return result | {f"pass@{k}": mean_pass_at_k(right, samples, k) for k in sorted({1, min(16, samples), samples})}
