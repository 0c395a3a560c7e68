"""The program `bireme`: in the wheel, in $BIREME_PROGRAM, or in PATH."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

NATIVE = Path(__file__).parent / "_native"


def find_program() -> str:
    """Return the path of the program."""
    bundled = NATIVE / "bin" / "bireme"
    program = os.environ.get("BIREME_PROGRAM") or (
        str(bundled) if bundled.exists() else shutil.which("bireme")
    )
    if program is None:
        raise FileNotFoundError(
            "the program bireme is neither in this package nor in PATH; set BIREME_PROGRAM"
        )
    return program


def main() -> None:
    """Replace this process by the program. The wheel installs it as the command `bireme`."""
    program = find_program()
    os.execv(program, [program, *sys.argv[1:]])
