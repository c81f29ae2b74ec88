"""The agent of docs/llm.md: OpenAI's client, two turns with a tool, and training on the turns."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines.conformance import KINDS, OPTIONS
from tests.engines.tool_model import make_tool_model

PAGE = Path(__file__).resolve().parents[2] / "docs/llm.md"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_tool_model(tmp_path_factory.mktemp("model")))


def program(kind: str, model: str) -> str:
    """Return the page's program for a small model."""
    text = PAGE.read_text().partition("## Agents\n")[2]
    [found] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    options = {"model": model, **OPTIONS[kind], "max_model_len": 128} if kind == "vllm" else {"model": model}
    for old, new in (
        ('"path/to/model", 1e-6', f"{model!r}, 1e-3"),
        ('EngineGroup("vllm", model=MODEL, max_model_len=2048)', f"EngineGroup({kind!r}, **{options})"),
        ("max_tokens=256", "max_tokens=16"),
    ):
        assert found.count(old) == 1, old
        found = found.replace(old, new)
    return str(found)


@pytest.mark.engines
@pytest.mark.parametrize("kind", KINDS[:2])
def test_the_pages_agent_learns_to_use_its_tool(kind: str, model: str, tmp_path: Path) -> None:
    pytest.importorskip("openai", reason="openai is not installed: make engines has it")
    (tmp_path / "agent.py").write_text(program(kind, model))
    done = subprocess.run(
        [sys.executable, "agent.py"],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},  # for matrices this small, other threads only wait
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rates = [int(each) for each in re.findall(r"^step \d+: (\d+)% right", done.stdout, re.MULTILINE)]
    print(f"{kind}: {rates} % right")
    assert len(rates) == 20
    assert sum(rates[-5:]) / 5 >= rates[0] + 30
