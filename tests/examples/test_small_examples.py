"""The smallest example, and the group behind a web service: real processes, a real server."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_hello_greets_from_four_ranks() -> None:
    command = [sys.executable, str(EXAMPLES / "hello.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"hello world, from rank {rank} of 4" for rank in range(4)]


def result_of(script: str, *options: str) -> float:
    """The number that the last line of a training run ends with."""
    command = [sys.executable, str(EXAMPLES / script), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return float(done.stdout.splitlines()[-1].rpartition(" ")[2].rstrip("%"))


@pytest.mark.slow
def test_ppo_in_one_file_learns_in_seconds() -> None:
    assert result_of("ppo_single_file.py", "--updates", "20") > 150  # a policy that has learnt nothing gets 22


@pytest.mark.slow
def test_grpo_in_one_file_learns_in_seconds() -> None:
    assert result_of("grpo_single_file.py", "--updates", "60", "--digits", "3") > 30  # one in a thousand by chance


@pytest.mark.training
@pytest.mark.parametrize("seed", ["0", "1", "2"])
@pytest.mark.parametrize(("script", "least"), [("ppo_single_file.py", 475), ("grpo_single_file.py", 90)])
def test_one_file_has_the_result_that_it_states(script: str, least: float, seed: str) -> None:
    assert result_of(script, "--seed", seed) >= least


@pytest.mark.parametrize("script", ["ppo_single_file.py", "grpo_single_file.py"])
def test_one_file_is_at_most_130_lines(script: str) -> None:
    assert len((EXAMPLES / script).read_text().splitlines()) <= 130


def test_the_service_answers_streams_and_stops_with_its_server() -> None:
    httpx = pytest.importorskip("httpx")
    pytest.importorskip("uvicorn")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        command = [sys.executable, "-m", "uvicorn", "app:app", "--fd", str(listener.fileno()), "--no-access-log"]
        server = subprocess.Popen(
            command, cwd=EXAMPLES / "service", pass_fds=[listener.fileno()], stderr=subprocess.PIPE, text=True
        )
    try:
        with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
            text = "the cat saw the dog and the dog saw the moon"
            assert client.post("/learn", json={"text": text}).json() == {"words_known": [5, 5]}
            with client.stream("GET", "/generate", params={"start": "the", "words": 4}) as response:
                words = [json.loads(line) for line in response.iter_lines()]
            assert {word["rank"] for word in words} == {0, 1}
            assert all(word["word"] in text.split() for word in words)
        server.send_signal(signal.SIGINT)
        _, stderr = server.communicate(timeout=30)
    finally:
        server.kill()
    assert "Traceback" not in stderr, stderr
    assert server.returncode in (0, -signal.SIGINT)
    assert "Application shutdown complete" in stderr
