"""Before the first round: do all agents mean the same training?

Every agent publishes the facts that all must share, and compares. The facts are public by the
nature of the algorithm; a private deviation of an agent's stepsizes is not among them. They travel
as JSON: torch's object collectives unpickle what others send.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from sottovoce.distributed.frames import FORMAT
from sottovoce.errors import DistributedError
from sottovoce.simulation.transcript import Setting
from sottovoce.storage.identity import digest, fingerprint, package_version


def shared_facts(
    setting: Setting, parameters: Sequence[Tensor], names: Sequence[str] | None = None
) -> dict[str, Any]:
    """What must agree among all agents, by the name under which a mismatch is reported."""
    graph, stepsize = setting.graph, setting.stepsize
    schedule = {**stepsize.spec, "deviation": None}
    return {
        "version": package_version(),
        "message format": FORMAT,
        "number of agents": graph.agents,
        "graph": f"{graph.name} with W {graph.spec['mixing'][:12]}",
        "dimension": sum(parameter.numel() for parameter in parameters),
        "dtype": str(parameters[0].dtype).removeprefix("torch."),
        "parameter names": "not given" if names is None else _short(str(list(names))),
        "parameter shapes": _short(str([list(parameter.shape) for parameter in parameters])),
        "algorithm": f"{setting.algorithm} with parts {digest(setting.algorithm.spec)[:12]}",
        "schedule": f"{stepsize} with code and numbers {digest(schedule)[:12]}",
    }


def starting_point(vector: Tensor) -> dict[str, str]:
    """A digest of the point from which an agent begins, as a fact to compare."""
    return {"starting point": fingerprint(vector)[:12]}


def compare(everybody: Mapping[int, Mapping[str, Any]], names: Iterable[str]) -> None:
    """Raise unless all agents' facts of these names are equal, naming field and values."""
    first = min(everybody)
    for name in names:
        expected = everybody[first].get(name)
        for agent, facts in everybody.items():
            if facts.get(name) != expected:
                raise DistributedError(
                    f"the agents disagree on the {name}: agent {first} has {expected!r}, agent "
                    f"{agent} has {facts.get(name)!r}; start all with the same"
                )


def number_of_training(offers: Mapping[int, Mapping[str, Any]]) -> int:
    """The number that the first agent drew for the training, 64 bits."""
    drawn = offers[min(offers)].get("training")
    if not isinstance(drawn, int) or not 0 <= drawn < 1 << 64:
        raise DistributedError(f"agent {min(offers)} offered no number for the training")
    return drawn


def require_same(
    expected: Mapping[str, Any], saved: Mapping[str, Any], how: str, remedy: str = ""
) -> None:
    """Raise unless something was saved under these facts; how: what was saved in which way."""
    for name, value in expected.items():
        if saved.get(name) != value:
            raise DistributedError(
                f"{how} with {name} {saved.get(name)!r}, but this training has {value!r}{remedy}"
            )


def _short(text: str) -> str:
    """The text, or where it is long its beginning and its digest."""
    if len(text) <= 200:
        return text
    return f"{text[:160]}... ({hashlib.sha256(text.encode()).hexdigest()[:12]})"
