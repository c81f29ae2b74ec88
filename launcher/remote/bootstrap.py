"""The bootstrap of a host: the ``python -c`` line that runs a program read from stdin, and the bytes for stdin.

The line is the same for every host and run and contains no secrets; the program and all secrets follow on stdin.  The
line must pass through any login shell unchanged (one line; no single quote, doubled backslash or exclamation mark), run
on any version of Python, and not read a byte too many, because stdin becomes the daemon's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

_SOURCE: Final = """\
import os,sys
sys.path=[p for p in sys.path if p]
def read(n):
 b=b""
 while len(b)<n:
  c=os.read(0,min(n-len(b),1<<20))
  if c==b"":
   sys.exit(3)
  b+=c
 return b
if sys.version_info<(3,6):
 sys.stderr.write("rlinf: %s is Python %s"%(sys.executable,sys.version.split()[0])+chr(10))
 os._exit(4)
g={"__name__":"shipped"}
exec(compile(read(int(read(10))),"shipped","exec"),g)
g["main"](read)
"""

BOOTSTRAP: Final = 'exec("' + _SOURCE.replace('"', '\\"').replace("\n", "\\n") + '")'  # the argument of python -c

TOO_OLD: Final = "rlinf: "  # prefix of the bootstrap's only message, which says that the interpreter is too old


def shipment(program: str, request: Mapping[str, Any], archive: bytes = b"") -> Iterator[bytes]:
    """Yield the bootstrap's input: a program of this package (``"preflight"``), its request, and an archive."""
    for piece in (Path(__file__).with_name(f"{program}.py").read_bytes(), json.dumps(request).encode()):
        yield b"%010d" % len(piece) + piece
    if archive:
        yield archive
