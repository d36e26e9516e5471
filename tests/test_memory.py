"""Free memory: the machine's own figure, within the limits of control groups of either version."""

from pathlib import Path

import pytest
import torch

from sottovoce.problems.gradients.memory import free_memory
from sottovoce.storage import memory

GIB = 1 << 30


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 8 GiB available, and no control group yet."""
    (tmp_path / "meminfo").write_text(
        f"MemTotal: 16000000 kB\nMemAvailable: {8 * GIB // 1024} kB\n"
    )
    (tmp_path / "cgroup").write_text("")
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_MEMBERSHIP", tmp_path / "cgroup")
    monkeypatch.setattr(memory, "_CONTROL", tmp_path / "control")
    return tmp_path


def group(folder: Path, limit: str, used: int, cached: int = 0, version: int = 2) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = ("memory.max", "memory.current", "inactive_file")
    if version == 1:
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{names[2]} {cached}\n")


def test_without_groups_it_is_what_is_available(system: Path) -> None:
    assert memory.free_host_memory() == 8 * GIB
    assert free_memory(torch.device("cpu")) == 8 * GIB


def test_the_tightest_group_on_the_way_up_counts(system: Path) -> None:
    (system / "cgroup").write_text("0::/batch/job\n")
    group(system / "control/batch/job", "max", 3 * GIB)
    assert memory.free_host_memory() == 8 * GIB, "no limit"
    group(system / "control/batch", str(4 * GIB), 3 * GIB, cached=GIB)
    assert memory.free_host_memory() == 2 * GIB, "files that the system drops are free"
    group(system / "control", str(2 * GIB), 3 * GIB)
    assert memory.free_host_memory() == 0


def test_a_container_that_does_not_see_its_groups_name_sees_its_limit(system: Path) -> None:
    (system / "cgroup").write_text("0::/outside/of/here\n")
    group(system / "control", str(3 * GIB), GIB)
    assert memory.free_host_memory() == 2 * GIB


def test_groups_of_the_first_version(system: Path) -> None:
    (system / "cgroup").write_text("5:cpu,cpuacct:/x\n4:memory:/x\n")
    group(system / "control/memory/x", str(GIB), GIB // 4, version=1)
    assert memory.free_host_memory() == 3 * GIB // 4


def test_where_nothing_can_be_read_it_is_the_machines_memory(
    system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_MEMINFO", system / "missing")
    monkeypatch.setattr(memory, "_MEMBERSHIP", system / "missing")
    assert memory.free_host_memory() > 10**8
