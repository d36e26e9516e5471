"""A torch optimizer whose step is one round among neighbours: this process is one agent."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import vector_to_parameters

from sottovoce.distributed.arithmetic import Arithmetic
from sottovoce.distributed.checkpoint import Checkpoint, Checkpoints
from sottovoce.distributed.exchange import Exchange
from sottovoce.distributed.frames import DTYPES, all_finite
from sottovoce.distributed.handshake import agree, require_same, shared_facts
from sottovoce.distributed.recording import AgentRecorder
from sottovoce.distributed.streams import AgentStreams
from sottovoce.errors import DistributedError
from sottovoce.graphs import Graph, as_graph
from sottovoce.graphs.mixing import diameter
from sottovoce.mechanisms import Mechanism, as_mechanism, check, in_blocks
from sottovoce.mechanisms.flow import Clock, Flow
from sottovoce.randomness import require_jitter, warn_about_seed
from sottovoce.simulation.transcript import Setting
from sottovoce.stepsizes import Stepsize, as_stepsize

_NO_RATE = (
    "there is no learning rate to schedule: the agents agreed on one public stepsize schedule "
    "when they started. Give DecentralizedSGD a Stepsize whose schedule does what is wanted "
    "(Power, or Custom with a function of k)"
)


_START = 60.0
"""Seconds that agents wait for each other at the start at least: loading takes unequal times."""


class DecentralizedSGD(torch.optim.Optimizer):
    """Train with neighbours only: `step()` is one round, x_i <- Σ_j (w_ij x_j - share_ij).

    Rank = agent. Create it after `torch.distributed.init_process_group` and after the model is on
    its device: the parameters become views of one flat vector. Creating it checks with all agents
    that they mean the same training. After `backward()`, `step()` draws the private numbers from a
    cipher keyed by the operating system, sends each neighbour a message of its own and sums what
    it receives; a failed round leaves the parameters as they were.

    stepsize: the algorithm's own default unless given. private_start: standard deviation of private
    Gaussian numbers added to the starting point, which closes the first round. timeout: seconds
    after which a silent neighbour counts as lost; at the start at least 60. record: keep everything
    for an auditor (`save_recording`). insecure_seed: make the private numbers repeatable, which
    gives up privacy.
    """

    def __init__(
        self,
        params: Iterable[Any],
        algorithm: Mechanism | str,
        graph: Graph | str,
        stepsize: Stepsize | str | None = None,
        *,
        private_start: float = 0.0,
        timeout: float = 60.0,
        record: bool = False,
        insecure_seed: int | None = None,
    ) -> None:
        if not dist.is_initialized():
            raise DistributedError(
                "there is no process group; call sottovoce.distributed.connect() or "
                "torch.distributed.init_process_group() first and start with torchrun"
            )
        if not 0 < timeout < float("inf"):
            raise DistributedError(f"timeout is {timeout}; accepted: a positive number of seconds")
        require_jitter(private_start)
        if insecure_seed is not None:
            warn_about_seed()
        self.graph, self.algorithm, self.timeout = as_graph(graph), as_mechanism(algorithm), timeout
        check(self.algorithm, self.graph)
        default = self.algorithm.default_stepsize
        self.stepsize = default if stepsize is None else as_stepsize(stepsize)
        self.agent, self.round = dist.get_rank(), 0
        self._closed = False
        super().__init__(params, {})
        self._closed = True
        self._failure: str | None = None
        self._parameters = [p for group in self.param_groups for p in group["params"]]
        self._lay_flat()
        setting = Setting(self.graph, self.algorithm, self.stepsize, private_start)
        self._facts = shared_facts(setting, self._parameters)
        device = self.state_vector.device
        self.exchange_device = device if _has_own_transport(device) else torch.device("cpu")
        agree(self._facts, self.exchange_device, max(timeout, _START))
        self.streams = AgentStreams(self.agent, insecure_seed, device, len(self.state_vector))
        self._recorder = AgentRecorder(self.agent, setting, self.state_vector) if record else None
        if private_start:
            jitter = self.streams.normal(
                "start", 0, len(self.state_vector), self.state_vector.dtype
            )
            self.state_vector.add_(jitter[0, 0].mul_(private_start))
        neighbours = self.graph.neighbours(self.agent)
        self._exchange = Exchange(
            self.agent, neighbours, self.state_vector, self.exchange_device, timeout
        )
        state = self.state_vector.view(1, 1, -1)
        routes = self.graph.routes(self.agent).to(device)
        several = self.algorithm.exchanges > 1 or bool(self.algorithm.at("state"))
        self._arithmetic = Arithmetic(
            self.algorithm,
            Flow(state, state, routes, self.streams, self.stepsize, Clock(1)),
            [p.numel() for p in self._parameters],
            self._exchange,
            whole=several or not in_blocks(self.algorithm, self.graph),
            keep_step=record,
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Do one round with the gradients in `.grad`; a parameter without one counts as zero.

        Several `backward()` calls before it add up, as with any optimizer.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._failure:
            raise DistributedError(
                f"an earlier round failed ({self._failure}) and the neighbours may have moved on; "
                "end this process and resume from the checkpoints"
            )
        round = self.round + 1
        before = self.state_vector.clone() if self.algorithm.exchanges > 1 else None
        # First of all, so that neighbours who are ahead need not wait for this agent's buffers.
        self._exchange.open(self._number(Clock(round)))
        gradients = self._gradients(round)
        try:
            self._do_round(round, gradients)
        except BaseException as error:
            self._failure = type(error).__name__
            if before is not None:
                self.state_vector.copy_(before)
            raise
        self.round = round
        return loss

    @property
    def bytes_per_message(self) -> int:
        """How many bytes each neighbour is sent in a round."""
        return self._exchange.bytes_per_message

    def samples(self, count: int, size: int) -> Tensor:
        """Private random indices in [0, size) of the samples for the next round: (count,).

        They depend on the round alone, so a resumed training draws what it would have drawn.
        """
        return self.streams.integers("data", self.round + 1, count, size)[0, 0].cpu()

    def save(
        self,
        folder: str | Path,
        tensors: Mapping[str, Tensor] | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> Path:
        """Write this agent's checkpoint of the current round below `folder`.

        tensors, facts: what else to keep, such as a model's buffers and the epoch. All agents must
        save after the same rounds.
        """
        own = {"state": self.state_vector, **_prefixed(self._arithmetic.memory)}
        return self._checkpoints(folder).save(self.round, own, tensors or {}, facts or {})

    def resume(self, folder: str | Path) -> Checkpoint | None:
        """Continue after the newest round that all agents have in `folder`; None if there is none.

        Every agent must call it. Checkpoints of later rounds are removed.
        """
        checkpoints = self._checkpoints(folder)
        round = checkpoints.newest_common(self.exchange_device, max(self.timeout, _START))
        if round:
            own, checkpoint = checkpoints.load(round)
            self.state_vector.copy_(own.pop("state"))
            self._remember({name.removeprefix(_MEMORY): one for name, one in own.items()})
        checkpoints.forget_after(round)
        self.round = round
        return checkpoint if round else None

    def save_recording(self, stem: str | Path) -> None:
        """Write to `stem.json` and `stem.safetensors` what this agent sent, got and computed."""
        if self._recorder is None:
            raise DistributedError("nothing was recorded; create the optimizer with record=True")
        self._recorder.save(stem)

    def state_dict(self) -> dict[str, Any]:
        """The round, what parts of the chain remember, and what the round was agreed under.

        Parameters are in the model's own state_dict.
        """
        memory = {name: one.clone() for name, one in self._arithmetic.memory.items()}
        own = {"round": self.round, "memory": memory, "shared": dict(self._facts)}
        return {**super().state_dict(), **own}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the round of a `state_dict` of the same training; all agents must do so."""
        require_same(self._facts, state_dict.get("shared", {}), "the state was saved")
        super().load_state_dict(state_dict)
        self.param_groups[:] = [_Group(group) for group in self.param_groups]
        self.round = int(state_dict["round"])
        self._remember(state_dict.get("memory", {}))

    def _remember(self, memory: Mapping[str, Tensor]) -> None:
        """Make this what the parts of the chain remember."""
        held, device = self._arithmetic.memory, self.state_vector.device
        held.clear()
        held.update({name: one.to(device, copy=True) for name, one in memory.items()})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Take the parameters of a group; options of its own are refused, the stepsize is one."""
        if self._closed:
            raise DistributedError(
                "parameters cannot be added later: the agents agreed on the dimension at the start"
            )
        options = sorted(set(param_group) - {"params", "param_names"})
        if options:
            raise DistributedError(
                f"a parameter group has the options {', '.join(options)}; groups may hold "
                "only parameters, because all parameters share one stepsize"
            )
        super().add_param_group(param_group)
        self.param_groups[-1] = _Group(self.param_groups[-1])

    def __getstate__(self) -> NoReturn:
        raise DistributedError(
            "this optimizer holds private keys and open connections, so it cannot be copied or "
            "pickled; use save() and resume()"
        )

    def _lay_flat(self) -> None:
        """Make all parameters views of one vector, in their order."""
        first = self._parameters[0]
        kinds = {(p.dtype, p.device) for p in self._parameters}
        if len(kinds) > 1 or first.dtype not in DTYPES:
            found = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
            raise DistributedError(
                f"the parameters are {found}; accepted: all float32 or all float64, on one device"
            )
        self.state_vector = torch.cat([p.detach().reshape(-1) for p in self._parameters])
        vector_to_parameters(self.state_vector, self._parameters)
        self._addresses = [parameter.data_ptr() for parameter in self._parameters]

    def _gradients(self, round: int) -> list[Tensor | None]:
        """Every parameter's gradient as a vector, all finite."""
        for parameter, address in zip(self._parameters, self._addresses, strict=True):
            if parameter.data_ptr() != address:
                raise DistributedError(
                    "the storage of a parameter changed after the optimizer was created (by "
                    "model.to() or assignment); move the model first, then create the optimizer"
                )
        found = [None if p.grad is None else p.grad.reshape(-1) for p in self._parameters]
        if not all_finite([gradient for gradient in found if gradient is not None]):
            raise DistributedError(
                f"the gradient of agent {self.agent} holds NaN or infinite numbers in round "
                f"{round}; nothing was sent"
            )
        return found

    def _do_round(self, round: int, gradients: list[Tensor | None]) -> None:
        """Send, receive, check, and only then replace the state, in one operation."""
        exchange, arithmetic, recorder = self._exchange, self._arithmetic, self._recorder
        if recorder:
            recorder.keep("states", self.state_vector)
            found = zip(self._parameters, gradients, strict=True)
            whole = [p.new_zeros(p.numel()) if g is None else g for p, g in found]
            recorder.keep("gradients", torch.cat(whole))
        for inner in range(self.algorithm.exchanges):
            message = self._number(Clock(round, inner))
            exchange.open(message)
            arithmetic.prepare(gradients, Clock(round, inner))
            for segment in range(len(exchange.segments)):
                arithmetic.write(segment)
                exchange.send(segment, message)
            # Not sooner: neighbours wait for what is sent, and nobody for these.
            self.streams.draw_ahead(round + 1)
            for segment in exchange.arrivals(message):
                arithmetic.add(segment)
            if not arithmetic.is_finite():
                exchange.check_finite(message)
            if recorder:
                assert arithmetic.step is not None
                if not inner:
                    recorder.keep("steps", arithmetic.step)
                recorder.keep("sent", [one.numbers() for one in exchange.outbox.values()])
                recorder.keep("received", [one.numbers() for one in exchange.inbox.values()])
            arithmetic.apply()
        if recorder:
            recorder.finished(round)

    def _number(self, at: Clock) -> int:
        """The number of an exchange, from 1 on, which its messages carry."""
        return (at.round - 1) * self.algorithm.exchanges + at.inner + 1

    def _checkpoints(self, folder: str | Path) -> Checkpoints:
        return Checkpoints(folder, self.agent, self._facts, diameter(self.graph.mixing))


_MEMORY = "memory."


def _prefixed(memory: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {_MEMORY + name: one for name, one in memory.items()}


class _Group(dict[str, Any]):
    """A parameter group that tells a learning-rate scheduler why there is nothing to schedule."""

    def __missing__(self, key: str) -> NoReturn:
        if key == "lr":
            raise DistributedError(_NO_RATE)
        raise KeyError(key)


def _has_own_transport(device: torch.device) -> bool:
    """Whether the process group moves tensors of this device itself; Gloo moves the CPU's alone."""
    return device.type == "cuda" and "nccl" in str(dist.get_backend_config())
