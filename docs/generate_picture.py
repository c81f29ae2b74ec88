"""Writes docs/pictures/page.png, the page of rlinf-ctl in a run of the main example.

``python -m docs.generate_picture`` trains the example, bundles the run and has headless Chromium draw its page in light
colours.  A bundle that exists already may be named instead.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

DOCS: Final = Path(__file__).parent
PICTURE: Final = DOCS / "pictures" / "page.png"
EXAMPLE: Final = DOCS.parent / "examples" / "embodiment" / "train_embodied_agent.py"
MAX_BYTES: Final = 300_000

FLAGS: Final = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-background-networking"),
    *("--window-size=1280,900", "--virtual-time-budget=8000", "--blink-settings=preferredColorScheme=1"),
)


def run(*command: str | Path, cwd: Path) -> None:
    subprocess.run([str(word) for word in command], cwd=cwd, check=True, timeout=300)


def main(bundle: Path | None) -> None:
    programs = Path(sys.executable).parent
    browser = shutil.which("chromium")
    if browser is None:
        sys.exit("needs chromium: apt-get install --no-install-recommends chromium")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if bundle is None:
            bundle = folder / "run.zip"
            run(programs / "rlinf-launch", "--log-dir", folder / "logs", EXAMPLE, cwd=folder)
            run(programs / "rlinf-ctl", "bundle", folder / "logs", "--output", bundle, cwd=folder)
        run(programs / "rlinf-ctl", "page", bundle, "--output", folder / "page.html", cwd=folder)
        PICTURE.parent.mkdir(exist_ok=True)
        profile = f"--user-data-dir={folder / 'profile'}"
        run(browser, *FLAGS, profile, f"--screenshot={PICTURE}", (folder / "page.html").as_uri(), cwd=folder)
    if PICTURE.stat().st_size > MAX_BYTES:
        sys.exit(f"{PICTURE} has {PICTURE.stat().st_size} bytes, which is more than {MAX_BYTES}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else None)
