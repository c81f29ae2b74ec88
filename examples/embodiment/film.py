"""An episode as an MP4, rendered by MuJoCo without a screen."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Self

import imageio.v2 as imageio
from simulators import Simulators

GL = os.environ.get("MUJOCO_GL")
"""Name of MuJoCo's rendering back end, which must be in the environment when MuJoCo is imported."""


class Film:
    """Writer of frames of the first simulator, frame by frame.

    ::

        with Film(path, simulators) as film:
            simulators.step(actions)
            film.add_frame()

    Args:
        path: path of the MP4.
        simulators: simulators made with ``drawn=True``.
    """

    def __init__(self, path: Path, simulators: Simulators) -> None:
        self._path, self._simulators = path, simulators

    def __enter__(self) -> Self:
        self._writer: Any = imageio.get_writer(self._path, fps=self._simulators.frames_per_second, codec="libx264")
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._writer.close()

    def add_frame(self) -> None:
        self._writer.append_data(self._simulators.frame())


def require_film(env_id: str) -> None:
    """Render one frame, so that missing libraries are reported before the training and not after it.

    Raises:
        RuntimeError: MuJoCo cannot render here.
    """
    simulators = Simulators(env_id, [0], drawn=True)
    try:
        simulators.frame()
    except Exception as error:  # its type depends on the OpenGL back end
        raise RuntimeError(
            f"runner.video: MuJoCo cannot draw with MUJOCO_GL={GL} ({error}): install libegl1 and a driver as "
            "libgl1-mesa-dri, or set MUJOCO_GL to osmesa or glfw"
        ) from error
    finally:
        simulators.close()
