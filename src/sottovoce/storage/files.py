"""Write files so that a reader never sees half of one."""

import errno
import json
import os
import re
import secrets
from pathlib import Path
from typing import Any

_CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EPERM)
"""Of a folder that may be written and not be read, or a file system without such a thing."""


_TOKEN_BYTES = 8
_UNFINISHED = re.compile(rf"\..+\.[0-9a-f]{{{2 * _TOKEN_BYTES}}}")
"""Names that `write_atomic` gives to what it has not finished."""


def write_atomic(path: str | Path, content: bytes, private: bool = False) -> None:
    """Replace the file `path` by `content` at once: after a crash the old or the new one is there.

    Once this returns it is the new one, after a power cut, too.

    A symbolic link stays, and the file that it names is replaced. What is not a file is refused.
    private: only its owner can read the file, from its first moment on.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        raise FileExistsError(errno.EEXIST, "it exists and is not a regular file", str(path))
    make_folder(path.parent)
    name = path.with_name(f".{path.name}.{secrets.token_hex(_TOKEN_BYTES)}")
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
        _sync(path.parent)
    except BaseException:
        name.unlink(missing_ok=True)
        raise


def remove_unfinished(folder: Path) -> None:
    """Remove what processes that were killed while they wrote have left in a folder.

    Nobody else may be writing there.
    """
    for path in folder.iterdir() if folder.is_dir() else ():
        if _UNFINISHED.fullmatch(path.name):
            path.unlink(missing_ok=True)


def write_json(path: str | Path, content: Any) -> None:
    """Write `content` as JSON, atomically; NaN and infinity are refused because JSON has none."""
    write_atomic(path, json.dumps(content, indent=1, allow_nan=False).encode() + b"\n")


def make_folder(folder: Path, mode: int = 0o777) -> None:
    """Make a folder and those above it, so that they are there after a power cut, too."""
    new = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True, mode=mode)
    for one in new:
        _sync(one.parent)


def _sync(folder: Path) -> None:
    """Make the folder's list of files durable, where the system can."""
    if os.name != "posix":
        return
    try:
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise
