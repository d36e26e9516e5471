"""What one agent does in tests that start real processes: `agent.py <scenario> <folder> ...`."""

import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cases
import launching
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import sottovoce.distributed as sd
from sottovoce import PDSGD, Stepsize, Uniform, ring
from sottovoce.distributed import arithmetic, frames
from sottovoce.distributed.exchange import Exchange
from sottovoce.distributed.gloo import GlooTransport
from sottovoce.errors import DistributedError, SottovoceError
from sottovoce.randomness import InsecureSeedWarning, private_streams
from sottovoce.storage.tensors import write_tensors

SEED = 11


def insecure_optimizer(params: list[Any], *arguments: Any, **options: Any) -> sd.DecentralizedSGD:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InsecureSeedWarning)
        return sd.DecentralizedSGD(params, *arguments, insecure_seed=SEED, **options)


def own_gradient(case: "cases.Case", agent: int) -> Callable[[Tensor, int], Tensor]:
    """The gradient that the simulator computes for this agent, from the agent's state alone."""
    streams = private_streams(1, case.problem.agents, insecure_seed=SEED)
    everybody = torch.zeros(1, case.problem.agents, case.problem.dimension, dtype=torch.float64)
    out = torch.zeros_like(everybody)

    def gradient(state: Tensor, round: int) -> Tensor:
        everybody[0, agent] = state
        return case.problem.gradient(everybody, streams, round, out)[0, agent].clone()

    return gradient


def equality(folder: Path) -> None:
    """Every case for 50 rounds, recorded; the test compares with the simulator.

    On a star the vector is cut as if it were a long one.
    """
    agent = dist.get_rank()
    plain = frames.SEGMENT_BYTES, arithmetic.BLOCK
    for name, case in cases.equality_cases().items():
        cut = case.graph.name.startswith("star")
        frames.SEGMENT_BYTES, arithmetic.BLOCK = (512, 48) if cut else plain
        point = nn.Parameter(torch.zeros(case.problem.dimension, dtype=torch.float64))
        optimizer = insecure_optimizer(
            [point],
            case.algorithm,
            case.graph,
            case.stepsize,
            private_start=case.private_start,
            record=True,
            timeout=60,
        )
        gradient = own_gradient(case, agent)
        for round in range(1, cases.ROUNDS + 1):
            point.grad = gradient(point.detach(), round)
            optimizer.step()
        optimizer.save_recording(folder / f"{name}-{agent}")
        write_tensors(folder / f"{name}-{agent}-final.safetensors", {"x": point.detach()})
    frames.SEGMENT_BYTES, arithmetic.BLOCK = plain


def clipped(folder: Path) -> None:
    """Clipped gradients of Poisson batches, recorded; the test compares with the simulator."""
    agent = dist.get_rank()
    for name, case in cases.clipped_cases().items():
        model, (inputs, targets) = cases.convolution(), cases.images()[agent]
        optimizer = insecure_optimizer(
            list(model.parameters()),
            case.algorithm,
            case.graph,
            case.stepsize,
            record=True,
            timeout=60,
            batch=case.problem.batch,
            poisson=True,
        )
        for _ in range(cases.ROUNDS):
            drawn = optimizer.poisson_sample(len(inputs))
            optimizer.zero_grad()
            optimizer.backward(model, cross_entropy, inputs[drawn], targets[drawn])
            optimizer.step()
        optimizer.save_recording(folder / f"{name}-{agent}")
        write_tensors(folder / f"{name}-{agent}-final.safetensors", {"x": optimizer.state_vector})


def wire(folder: Path) -> None:
    """Keep the raw bytes of every posted message, as handed to torch.distributed."""
    agent = dist.get_rank()
    posted: list[tuple[str, int, bytes]] = []
    plain = dist.batch_isend_irecv

    def listening(operations: list[dist.P2POp]) -> list[dist.Work]:
        for one in operations:
            if one.op is dist.isend:
                posted.append((name, one.peer, one.tensor.numpy().tobytes()))
        return plain(operations)

    dist.batch_isend_irecv = listening  # type: ignore[assignment]
    for name, case in cases.wire_cases().items():
        generator = torch.Generator().manual_seed(agent)
        start = torch.randn(case.problem.dimension, generator=generator, dtype=torch.float64)
        point = nn.Parameter(start)
        optimizer = insecure_optimizer(
            [point], case.algorithm, case.graph, case.stepsize, record=True, timeout=60
        )
        gradient = own_gradient(case, agent)
        for round in range(1, 4):
            point.grad = gradient(point.detach(), round)
            optimizer.step()
        optimizer.save_recording(folder / f"{name}-{agent}")
    dist.batch_isend_irecv = plain  # type: ignore[assignment]
    for number, (name, peer, content) in enumerate(posted):
        (folder / f"{name}-{agent}-to-{peer}-{number:03d}.bin").write_bytes(content)


def behaviour(folder: Path) -> None:
    """What torch users expect of an optimizer; each agent writes what it saw."""
    agent = dist.get_rank()
    seen: dict[str, Any] = {}
    graph, stepsize = ring(dist.get_world_size()), cases.CONSTANT

    def build(seed: int = 0) -> nn.Sequential:
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()

    inputs = torch.linspace(-1, 1, 12, dtype=torch.float64).view(4, 3) * (agent + 1)

    def train(
        step: Callable[[nn.Sequential, sd.DecentralizedSGD], None], one_batch: bool = False
    ) -> list[float]:
        model = build()
        optimizer = insecure_optimizer(list(model.parameters()), PDSGD(), graph, stepsize)
        optimizer.transport.in_one_piece = one_batch
        for _ in range(3):
            step(model, optimizer)
        return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).tolist()

    def plain(model: nn.Sequential, optimizer: sd.DecentralizedSGD) -> None:
        optimizer.zero_grad()
        model(inputs).square().sum().backward()
        optimizer.step()

    def accumulated(model: nn.Sequential, optimizer: sd.DecentralizedSGD) -> None:
        optimizer.zero_grad(set_to_none=False)
        for half in (inputs[:2], inputs[2:]):
            model(half).square().sum().backward()
        optimizer.step()

    def with_closure(model: nn.Sequential, optimizer: sd.DecentralizedSGD) -> None:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = model(inputs).square().sum()
            loss.backward()
            return loss

        seen["closure_loss"] = optimizer.step(closure).item()

    seen["plain"] = train(plain)
    seen["accumulated"] = train(accumulated)
    seen["closure"] = train(with_closure)
    seen["one_batch"] = train(plain, one_batch=True)

    model = build()
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters()}]
    optimizer = insecure_optimizer(groups, PDSGD(), graph, stepsize)
    for _ in range(3):
        plain(model, optimizer)
    seen["groups"] = torch.cat([p.detach().reshape(-1) for p in model.parameters()]).tolist()
    seen["mean"] = sd.mean_model(optimizer).tolist()
    seen["consensus"] = sd.consensus_error(optimizer)

    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    saved["model"] = {name: value.clone() for name, value in saved["model"].items()}
    for _ in range(2):
        plain(model, optimizer)
    after = torch.cat([p.detach().reshape(-1) for p in model.parameters()]).tolist()
    again = build(1)
    other = insecure_optimizer(list(again.parameters()), PDSGD(), graph, stepsize)
    again.load_state_dict(saved["model"])
    refused(seen, "other_groups", lambda: other.load_state_dict(saved["optimizer"]))
    one_group = {**saved["optimizer"], "param_groups": other.state_dict()["param_groups"]}
    other.load_state_dict(one_group)
    for _ in range(2):
        plain(again, other)
    seen["after"] = after
    seen["reloaded"] = torch.cat([p.detach().reshape(-1) for p in again.parameters()]).tolist()

    other.zero_grad()
    seen["zero_grad"] = all(p.grad is None for p in again.parameters())
    refused(seen, "scheduler", lambda: torch.optim.lr_scheduler.StepLR(other, step_size=1))
    refused(seen, "add_group", lambda: other.add_param_group({"params": [nn.Parameter(inputs)]}))
    before = torch.cat([p.detach().reshape(-1) for p in again.parameters()])
    again[0].weight.grad = torch.full_like(again[0].weight, float("nan"))
    refused(seen, "nan", other.step)
    seen["nan_unchanged"] = torch.equal(
        before, torch.cat([p.detach().reshape(-1) for p in again.parameters()])
    )
    other.zero_grad()
    other.step()
    seen["no_gradient_mixes"] = bool(torch.isfinite(other.state_vector).all())
    (folder / f"behaviour-{agent}.json").write_text(json.dumps(seen))


def refused(seen: dict[str, Any], name: str, action: Callable[[], object]) -> None:
    try:
        action()
    except SottovoceError as error:
        seen[name] = f"{type(error).__name__}: {error}"
    except ValueError as error:
        seen[name] = f"ValueError: {error}"
    else:
        seen[name] = "accepted"


def mismatch(folder: Path) -> None:
    """Agent 1 differs from the others in one thing at a time."""
    agent = dist.get_rank()
    seen: dict[str, str] = {}
    for name, (mine, theirs) in cases.mismatches().items():
        size, dtype, graph, algorithm, stepsize = theirs if agent == 1 else mine
        point = nn.Parameter(torch.zeros(size, dtype=dtype))
        refused(
            seen,
            name,
            lambda: sd.DecentralizedSGD([point], algorithm, graph, stepsize, timeout=30),  # noqa: B023
        )
    (folder / f"mismatch-{agent}.json").write_text(json.dumps(seen))


def training(folder: Path, rounds: int, every: int, doomed: int, kills: str) -> None:
    """Train with checkpoints; agent `doomed` ends itself once for each of `kills`.

    kills: `phase@round` joined by commas, a phase being before, during, after, or stop (which only
    falls silent).
    """
    agent = dist.get_rank()
    point = nn.Parameter(torch.zeros(cases.TRAINING_DIMENSION, dtype=torch.float64))
    timeout = float(os.environ.get("TEST_TIMEOUT", "20"))
    optimizer = insecure_optimizer(
        [point],
        PDSGD(),
        ring(dist.get_world_size()),
        Stepsize(cases.HALF, Uniform()),
        timeout=timeout,
    )
    resumed = optimizer.resume(folder, journal="TEST_JOURNAL" in os.environ)
    with (folder / f"starts-{agent}").open("a") as starts:
        starts.write(f"{optimizer.round}\n")
    print(f"agent {agent} starts after round {resumed.round if resumed else 0}", flush=True)
    data = torch.Generator().manual_seed(agent)
    target = torch.randn(cases.TRAINING_DIMENSION, generator=data, dtype=torch.float64)

    def die(phase: str, round: int) -> None:
        marker = folder / f"killed-{phase}@{round}"
        if agent == doomed and f"{phase}@{round}" in kills.split(",") and not marker.exists():
            marker.write_text(str(time.time()))
            os.kill(os.getpid(), signal.SIGSTOP if phase == "stop" else signal.SIGKILL)

    arrivals = Exchange.arrivals

    def interrupted(self: Exchange, round: int) -> Any:
        for place, j in enumerate(arrivals(self, round)):
            if place == 0:
                die("during", round)
            yield j

    Exchange.arrivals = interrupted  # type: ignore[method-assign]
    while optimizer.round < rounds:
        round = optimizer.round + 1
        die("before", round)
        die("stop", round)
        noise = optimizer.samples(1, 1000).double() / 1000
        point.grad = point.detach() - target + noise
        before = point.detach().clone()
        try:
            optimizer.step()
        except DistributedError as error:
            report = {
                "error": type(error).__name__,
                "agent": getattr(error, "agent", None),
                "round": getattr(error, "round", None),
                "text": str(error),
                "time": time.time(),
                "unchanged": torch.equal(before, point.detach()) and optimizer.round == round - 1,
            }
            (folder / f"lost-{agent}.json").write_text(json.dumps(report))
            raise
        die("after", round)
        if round % every == 0:
            optimizer.save(folder, facts={"note": "test"})
        if pause := float(os.environ.get("TEST_PAUSE", "0")):
            time.sleep(pause)
    write_tensors(folder / f"final-{agent}.safetensors", {"x": point.detach()})


def forked(
    folder: Path, agents: int, doomed: int, rounds: int, every: int, kills: str
) -> list[int]:
    """Processes of agents that do `training` in a group of their own."""
    port = launching.free_port()
    children = []
    for agent in range(agents):
        if child := os.fork():
            children.append(child)
            continue
        settings = {"RANK": agent, "WORLD_SIZE": agents, "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in settings.items()})
        os.environ["MASTER_ADDR"] = "127.0.0.1"
        code = 1
        try:
            sd.connect(timeout=60)
            training(folder, rounds, every, doomed, kills)
            code = 0
        finally:
            os._exit(code)
    return children


def again(folder: Path, agents: int, rounds: int, kills: list[str]) -> None:
    """Start all agents once for each of `kills`, `agent:phase@round`, and once more to the end.

    Without checkpoints: what a start goes on from is the journal.
    """
    import torch._dynamo  # noqa: F401

    os.environ["TEST_JOURNAL"] = "yes"
    for kill in [*kills, "-1:none"]:
        doomed, _, phase = kill.partition(":")
        children = forked(folder, agents, int(doomed), rounds, 1000, phase)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        if phase == "none" and any(codes):
            raise SystemExit(f"the last start ended with {codes}")


def alone(
    folder: Path, agents: int, doomed: int, rounds: int, every: int, kills: list[str]
) -> None:
    """For each kill, fork agents that nobody watches over; write how and when each one ended.

    torchrun ends the survivors itself, so what they do by themselves shows only without it.
    """
    # Every torch optimizer imports it; here once for all children.
    import torch._dynamo  # noqa: F401

    started: dict[int, tuple[str, int]] = {}
    for kill in kills:
        own = folder / kill
        own.mkdir(exist_ok=True)
        for agent, child in enumerate(forked(own, agents, doomed, rounds, every, kill)):
            started[child] = (kill, agent)
    ended: dict[str, dict[int, tuple[float, int]]] = {kill: {} for kill in kills}
    deadline = time.monotonic() + 100
    while started and time.monotonic() < deadline:
        child, status = os.waitpid(-1, os.WNOHANG)
        if child:
            kill, agent = started.pop(child)
            ended[kill][agent] = (time.time(), os.waitstatus_to_exitcode(status))
        elif all((kill, agent) == (kill, doomed) for kill, agent in started.values()):
            break
        else:
            time.sleep(0.02)
    for child in started:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    (folder / "ended.json").write_text(json.dumps(ended))


def links(folder: Path) -> None:
    """How many connections an agent of a ring has before and after its first rounds."""
    agent = dist.get_rank()
    before = sockets()
    point = nn.Parameter(torch.ones(3))
    optimizer = sd.DecentralizedSGD([point], PDSGD(), ring(dist.get_world_size()), timeout=30)
    for _ in range(2):
        optimizer.step()
    (folder / f"links-{agent}.json").write_text(json.dumps(sockets() - before))
    optimizer.close()


def sockets() -> int:
    names = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))
    return sum("socket" in os.readlink(name) for name in names if os.path.islink(name))


SCENARIOS = {
    "links": links,
    "equality": equality,
    "clipped": clipped,
    "wire": wire,
    "behaviour": behaviour,
    "mismatch": mismatch,
}


def main() -> None:
    torch.set_num_threads(1)
    scenario, place, *rest = sys.argv[1:]
    folder = Path(place)
    if scenario == "again":
        agents, rounds, *kills = rest
        again(folder, int(agents), int(rounds), kills)
        return
    if scenario == "alone":
        agents, doomed, rounds, every, *kills = rest
        alone(folder, int(agents), int(doomed), int(rounds), int(every), kills)
        return
    sd.connect(timeout=60)
    if scenario == "training":
        rounds, every, doomed, kills = rest
        training(folder, int(rounds), int(every), int(doomed), kills)
    else:
        for name in scenario.split(","):
            SCENARIOS[name](folder)
    # Not dist.barrier(), which connects agents that are not neighbours.
    GlooTransport(torch.device("cpu")).close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
