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
