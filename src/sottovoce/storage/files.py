"""Write files so that a reader never sees half of one."""

import errno
import json
import os
import secrets
from pathlib import Path
from typing import Any


def write_atomic(path: str | Path, content: bytes, private: bool = False) -> None:
    """Replace the file `path` by `content` at once: after a crash the old or the new one is there.

    A symbolic link stays, and the file that it names is replaced. What is not a file is refused.
    private: only its owner can read the file, from its first moment on.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        raise FileExistsError(errno.EEXIST, "it exists and is not a regular file", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    name = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        mode = 0o600 if private else 0o666
        handle = os.open(
            name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), mode
        )
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        name.unlink(missing_ok=True)
        raise


def write_json(path: str | Path, content: Any) -> None:
    """Write `content` as JSON, atomically; NaN and infinity are refused because JSON has none."""
    write_atomic(path, json.dumps(content, indent=1, allow_nan=False).encode() + b"\n")
