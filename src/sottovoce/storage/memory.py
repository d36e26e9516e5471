"""How much memory this process can still have."""

import os
from pathlib import Path

_MEMBERSHIP = Path("/proc/self/cgroup")
_CONTROL = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")


def free_host_memory() -> int:
    """Bytes that can still be allocated: what the machine has available, within control groups.

    A container or a batch system limits its processes by control groups (cgroups of either
    version); the machine's own figures do not show that.
    """
    return max(0, min([_available(), *_left_in_groups()]))


def _available() -> int:
    try:
        found = _MEMINFO.read_text(encoding="ascii").partition("MemAvailable:")[2]
        return 1024 * int(found.split()[0])
    except (OSError, IndexError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _left_in_groups() -> list[int]:
    """What is left in each control group that this process is in, its parents included."""
    try:
        lines = _MEMBERSHIP.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, place = line.split(":", 2)
        if not controllers:
            root, names = _CONTROL, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            root = _CONTROL / "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        group = root / place.lstrip("/")
        # Inside a container the group's own name may not be visible: its root is then the group.
        for folder in (one for one in (group, *group.parents) if one.is_relative_to(root)):
            left = _left(folder, *names)
            if left is not None:
                found.append(left)
    return found


def _left(folder: Path, limit: str, used: str, cached: str) -> int | None:
    """Bytes below a group's limit, files that the system would drop not counted; None: no limit."""
    try:
        most, held = (int((folder / name).read_text()) for name in (limit, used))
        statistics = (folder / "memory.stat").read_text().split()
    except (OSError, ValueError):
        return None
    at = dict(zip(statistics[::2], statistics[1::2], strict=False))
    return most - held + int(at.get(cached, 0))
