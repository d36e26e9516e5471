"""The commands that documents name, as programs that run these sources."""

import os
import shlex
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def programs(folder: Path) -> dict[str, str]:
    """Put `sottovoce`, `torchrun` and `python` into a folder; return the variables that use it."""
    folder.mkdir()
    for name, program in (
        ("sottovoce", "from sottovoce.cli import main; main()"),
        ("torchrun", "from torch.distributed.run import main; main()"),
    ):
        # The first line of a script cannot name an interpreter whose path has a space.
        command = [sys.executable, "-P", "-c", f"import sys; sys.argv[0] = {name!r}; {program}"]
        shim = folder / name
        shim.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        shim.chmod(0o755)
    (folder / "python").symlink_to(sys.executable)
    return {
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "OMP_NUM_THREADS": "1",
    }
