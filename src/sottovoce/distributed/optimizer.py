"""A torch optimizer whose step is one round among neighbours: this process is one agent."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from sottovoce.algorithms import Algorithm, has_scalar_shares
from sottovoce.distributed.checkpoint import Checkpoint, Checkpoints
from sottovoce.distributed.exchange import Exchange
from sottovoce.distributed.frames import DTYPES, all_finite
from sottovoce.distributed.handshake import agree, shared_facts
from sottovoce.distributed.recording import AgentRecorder
from sottovoce.distributed.streams import AgentStreams
from sottovoce.errors import DistributedError
from sottovoce.graphs import Graph
from sottovoce.mixing import diameter
from sottovoce.randomness import require_jitter, warn_about_seed
from sottovoce.stepsizes import Stepsize

_NO_RATE = (
    "there is no learning rate to schedule: the agents agreed on one public stepsize schedule "
    "when they started. Give DecentralizedSGD a Stepsize whose schedule does what is wanted "
    "(Power, or Custom with a function of k)"
)


_START = 60.0
"""Seconds that agents wait for each other at the start at least: loading takes unequal times."""

_BLOCK = 1 << 17
"""Numbers that are worked on at a time on a CPU, so that they stay in its cache."""


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
        graph: Graph,
        algorithm: Algorithm,
        stepsize: Stepsize | None = None,
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
        self.graph, self.algorithm, self.timeout = graph, algorithm, timeout
        self.stepsize = stepsize or algorithm.default_stepsize
        self.agent, self.round = dist.get_rank(), 0
        self._closed = False
        super().__init__(params, {})
        self._closed = True
        self._failure: str | None = None
        self._parameters = [p for group in self.param_groups for p in group["params"]]
        self._lay_flat()
        self._facts = shared_facts(
            graph,
            algorithm,
            self.stepsize,
            [tuple(p.shape) for p in self._parameters],
            self.state_vector.dtype,
        )
        device = self.state_vector.device
        self.exchange_device = device if _has_own_transport(device) else torch.device("cpu")
        agree(self._facts, self.exchange_device, max(timeout, _START))
        self.streams = AgentStreams(self.agent, insecure_seed, device)
        if private_start:
            jitter = self.streams.normal(
                "start", 0, len(self.state_vector), self.state_vector.dtype
            )
            self.state_vector.add_(jitter[0, 0].mul_(private_start))
        self._routes = graph.routes(self.agent).to(device)
        self._receivers: list[int] = self._routes.receiver.tolist()
        self._exchange = Exchange(
            self.agent,
            graph.neighbours(self.agent),
            len(self.state_vector),
            self.state_vector.dtype,
            self.exchange_device,
            timeout,
        )
        self._recorder = (
            AgentRecorder(self.agent, graph, str(algorithm), str(self.stepsize)) if record else None
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
        self._collect_gradient(round)
        try:
            self._do_round(round)
        except BaseException as error:
            self._failure = type(error).__name__
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
        return self._checkpoints(folder).save(
            self.round, self.state_vector, tensors or {}, facts or {}
        )

    def resume(self, folder: str | Path) -> Checkpoint | None:
        """Continue after the newest round that all agents have in `folder`; None if there is none.

        Every agent must call it. Checkpoints of later rounds are removed.
        """
        checkpoints = self._checkpoints(folder)
        round = checkpoints.newest_common(self.exchange_device, max(self.timeout, _START))
        if round:
            state, checkpoint = checkpoints.load(round)
            self.state_vector.copy_(state)
        checkpoints.forget_after(round)
        self.round = round
        return checkpoint if round else None

    def save_recording(self, stem: str | Path) -> None:
        """Write to `stem.json` and `stem.safetensors` what this agent sent, got and computed."""
        if self._recorder is None:
            raise DistributedError("nothing was recorded; create the optimizer with record=True")
        self._recorder.save(stem)

    def state_dict(self) -> dict[str, Any]:
        """The round and what it was agreed under; parameters are in the model's own state_dict."""
        return {**super().state_dict(), "round": self.round, "shared": dict(self._facts)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the round of a `state_dict` of the same training; all agents must do so."""
        saved = state_dict.get("shared", {})
        for name, expected in self._facts.items():
            if saved.get(name) != expected:
                raise DistributedError(
                    f"the state was saved with {name} {saved.get(name)!r}, but this training has "
                    f"{expected!r}"
                )
        super().load_state_dict(state_dict)
        self.param_groups[:] = [_Group(group) for group in self.param_groups]
        self.round = int(state_dict["round"])

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Take the parameters of a group; options of its own are refused, the stepsize is one."""
        if self._closed:
            raise DistributedError(
                "parameters cannot be added later: the agents agreed on the dimension at the start"
            )
        options = sorted(set(param_group) - {"params", "param_names"})
        if options:
            raise DistributedError(
                f"a parameter group has the options {', '.join(options)}; all parameters share the "
                "one agreed stepsize, so groups may hold parameters alone"
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
        self._step = torch.zeros_like(self.state_vector)
        self._sum = torch.empty_like(self.state_vector)
        size = min(_BLOCK, len(self.state_vector)) if first.device.type == "cpu" else None
        self._scratch = torch.empty_like(self.state_vector[:size])
        self._own = torch.empty_like(self.state_vector)
        self._places: list[Tensor] = []
        self._addresses: list[int] = []
        at = 0
        for parameter in self._parameters:
            place = slice(at, at + parameter.numel())
            parameter.data = self.state_vector[place].view(parameter.shape)
            self._places.append(self._step[place].view(parameter.shape))
            self._addresses.append(parameter.data_ptr())
            at = place.stop

    def _collect_gradient(self, round: int) -> None:
        for parameter, place, address in zip(
            self._parameters, self._places, self._addresses, strict=True
        ):
            if parameter.data_ptr() != address:
                raise DistributedError(
                    "a parameter was given other memory after the optimizer was created (by "
                    "model.to() or assignment); move the model first, then create the optimizer"
                )
            if parameter.grad is None:
                place.zero_()
            else:
                place.copy_(parameter.grad)
        if not all_finite(self._step):
            raise DistributedError(
                f"the gradient of agent {self.agent} holds NaN or infinite numbers in round "
                f"{round}; nothing was sent"
            )

    def _do_round(self, round: int) -> None:
        """Send, receive, check, and only then replace the state, in one operation."""
        exchange, recorder = self._exchange, self._recorder
        exchange.open(round)
        step = self._step.view(1, 1, -1)
        if recorder:
            recorder.keep("states", self.state_vector)
            recorder.keep("gradients", self._step)
        self.algorithm.perturb_(step, self.streams, round)
        self.stepsize.scale_(step, self.streams, round)
        self._send_messages(round)
        self.streams.draw_ahead(round + 1)
        self._receive(round)
        if recorder:
            neighbours = exchange.neighbours
            recorder.keep("steps", self._step)
            recorder.keep("sent", [exchange.outgoing(i) for i in neighbours])
            recorder.keep("received", [exchange.incoming(j) for j in neighbours])
            recorder.finished(round)

    def _send_messages(self, round: int) -> None:
        """Write every message into its frame and send it; the own one stays here.

        The same operations in the same order as `Algorithm.messages`, without its temporaries.
        """
        algorithm, state, step = self.algorithm, self.state_vector, self._step
        targets = {
            i: self._own if i == self.agent else self._exchange.outgoing(i) for i in self._receivers
        }
        if not has_scalar_shares(algorithm):
            messages = algorithm.messages(
                state.view(1, 1, -1),
                step.view(1, 1, -1),
                self._routes,
                self.streams,
                round,
                self.stepsize,
            )
            for place, (i, target) in enumerate(targets.items()):
                target.copy_(messages[0, place])
                if i != self.agent:
                    self._exchange.send(i, round)
            return
        weights = self._routes.weight.to(state.dtype)
        parts = algorithm.coefficients(self._routes, self.streams, round)[0].to(step.dtype)
        # The own message last: it is computed while the others travel.
        order = sorted(
            range(len(self._receivers)), key=lambda at: self._receivers[at] == self.agent
        )
        for at in order:
            i = self._receivers[at]
            self._write_message(targets[i], weights[at], parts[at])
            if i != self.agent:
                self._exchange.send(i, round)

    def _write_message(self, target: Tensor, weight: Tensor, part: Tensor) -> None:
        """target = weight x - part s, in blocks that the processor's cache holds."""
        size = len(self._scratch)
        for x, s, out in zip(
            self.state_vector.split(size), self._step.split(size), target.split(size), strict=True
        ):
            share = torch.mul(s, part, out=self._scratch[: len(s)])
            if out.device == x.device:
                torch.mul(x, weight, out=out)
                out.sub_(share)
            else:
                out.copy_((x * weight).sub_(share))

    def _receive(self, round: int) -> None:
        """Sum the messages in ascending order of senders, the own one at its place.

        The last one is added when all have been checked and sent: that one operation is the round.
        """
        total: Tensor | None = None
        last: Tensor | None = None
        for message in self._messages(round):
            if last is not None:
                total = _add(total, last, self._sum)
            last = message
        assert last is not None
        _add(total, last, self.state_vector)

    def _messages(self, round: int) -> Iterator[Tensor]:
        own_is_due = True
        for j in self._exchange.arrivals(round):
            if own_is_due and j > self.agent:
                yield self._own
                own_is_due = False
            yield self._exchange.incoming(j).to(self._own.device)
        if own_is_due:
            yield self._own

    def _checkpoints(self, folder: str | Path) -> Checkpoints:
        return Checkpoints(folder, self.agent, self._facts, diameter(self.graph.mixing))


class _Group(dict[str, Any]):
    """A parameter group that tells a learning-rate scheduler why there is nothing to schedule."""

    def __missing__(self, key: str) -> NoReturn:
        if key == "lr":
            raise DistributedError(_NO_RATE)
        raise KeyError(key)


def _add(total: Tensor | None, message: Tensor, out: Tensor) -> Tensor:
    """total + message; a sum begins with zero, as in `receive`: negative zeros become positive."""
    return torch.add(message, 0.0 if total is None else total, out=out)


def _has_own_transport(device: torch.device) -> bool:
    """Whether the process group moves tensors of this device itself; Gloo moves the CPU's alone."""
    return device.type == "cuda" and "nccl" in str(dist.get_backend_config())
