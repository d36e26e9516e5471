"""Before the first round: do all agents mean the same training?

Every agent publishes the facts that all must share, and compares. The facts are public by the
nature of the algorithm; a private deviation of an agent's stepsizes is not among them. They travel
as JSON in byte tensors of fixed size: torch's object collectives unpickle what others send.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sottovoce.distributed.frames import FORMAT
from sottovoce.errors import DistributedError, PeerLost
from sottovoce.simulation.transcript import Setting
from sottovoce.stepsizes import Stepsize
from sottovoce.storage.identity import digest, package_version

_FACT_BYTES = 4096
_COUNTS = 16
"""The schedule is compared by value at this many counts k = 1, 2, ..."""


def shared_facts(setting: Setting, parameters: Sequence[Tensor]) -> dict[str, Any]:
    """What must agree among all agents, by the name under which a mismatch is reported."""
    graph, stepsize = setting.graph, setting.stepsize
    return {
        "version": package_version(),
        "message format": FORMAT,
        "number of agents": graph.agents,
        "graph": f"{graph.name} with W {graph.spec['mixing'][:12]}",
        "dimension": sum(parameter.numel() for parameter in parameters),
        "dtype": str(parameters[0].dtype).removeprefix("torch."),
        "parameter shapes": _short(str([list(parameter.shape) for parameter in parameters])),
        "algorithm": f"{setting.algorithm} with parts {digest(setting.algorithm.spec)[:12]}",
        "schedule": f"{stepsize} with values {_schedule_digest(stepsize, graph.agents)}",
    }


def agree(facts: dict[str, Any], device: torch.device, timeout: float) -> None:
    """Compare `facts` with every agent's; on a mismatch all raise, naming field and values."""
    text = json.dumps(facts).encode()
    if len(text) > _FACT_BYTES:
        raise DistributedError(
            f"the shared facts take {len(text)} bytes; {_FACT_BYTES} are accepted"
        )
    own = torch.zeros(_FACT_BYTES, dtype=torch.uint8)
    own[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    everybody = [_read(sheet) for sheet in gather(own, device, timeout, "the start-up check")]
    for name in facts:
        for agent, other in enumerate(everybody):
            expected = everybody[0].get(name)
            if other.get(name) != expected:
                raise DistributedError(
                    f"the agents disagree on the {name}: agent 0 has {expected!r}, agent {agent} "
                    f"has {other.get(name)!r}; start all with the same"
                )
    world, wanted = dist.get_world_size(), facts["number of agents"]
    if world != wanted:
        raise DistributedError(
            f"the graph has {wanted} agents, but {world} processes were started; start {wanted} "
            "(torchrun: --nnodes times --nproc-per-node)"
        )


def require_same(
    expected: Mapping[str, Any], saved: Mapping[str, Any], how: str, remedy: str = ""
) -> None:
    """Raise unless something was saved under these facts; how: what was saved in which way."""
    for name, value in expected.items():
        if saved.get(name) != value:
            raise DistributedError(
                f"{how} with {name} {saved.get(name)!r}, but this training has {value!r}{remedy}"
            )


def gather(own: Tensor, device: torch.device, timeout: float, purpose: str) -> list[Tensor]:
    """Every agent's tensor, in the order of agents, on the CPU."""
    sheets = [torch.empty_like(own, device=device) for _ in range(dist.get_world_size())]
    finish(lambda: dist.all_gather(sheets, own.to(device), async_op=True), timeout, purpose)
    return [sheet.cpu() for sheet in sheets]


def finish(start: Any, timeout: float, purpose: str) -> None:
    """Run a collective to its end, or say that not all agents took part."""
    try:
        start().wait(timedelta(seconds=timeout))
    except RuntimeError:
        raise PeerLost(
            f"{purpose} timed out after {timeout:g} s: not all agents took part",
            None,
            0,
        ) from None


def _schedule_digest(stepsize: Stepsize, agents: int) -> str:
    block = stepsize.schedule.block
    values = [
        (stepsize.schedule.base(1 + k * block, agent), *stepsize.law.interval(k + 1))
        for k in range(_COUNTS)
        for agent in range(agents)
    ]
    return hashlib.sha256(repr(values).encode()).hexdigest()[:12]


def _short(text: str) -> str:
    """The text, or where it is long its beginning and its digest."""
    if len(text) <= 200:
        return text
    return f"{text[:160]}... ({hashlib.sha256(text.encode()).hexdigest()[:12]})"


def _read(sheet: Tensor) -> dict[str, Any]:
    try:
        facts = json.loads(sheet.numpy().tobytes().rstrip(b"\0"))
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}
