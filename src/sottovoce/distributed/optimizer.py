"""A torch optimizer whose step is one round among neighbours: this process is one agent."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn, Unpack

import torch
from torch import Tensor, nn

from sottovoce.distributed.arithmetic import Arithmetic
from sottovoce.distributed.checkpoint import Checkpoint
from sottovoce.distributed.clipping import Clipping
from sottovoce.distributed.course import Course
from sottovoce.distributed.exchange import Exchange
from sottovoce.distributed.executions import Executions, number_of_settings
from sottovoce.distributed.gloo import GlooTransport
from sottovoce.distributed.handshake import require_same, shared_facts, starting_point
from sottovoce.distributed.masks import CHECK_WORDS, Masks
from sottovoce.distributed.options import Options, completed
from sottovoce.distributed.parameters import Group, Parameters, module_of, refuse_rates
from sottovoce.distributed.recording import AgentRecorder
from sottovoce.distributed.rounds import Rounds
from sottovoce.distributed.standing import Standing
from sottovoce.distributed.streams import AgentStreams
from sottovoce.distributed.transport import Transport
from sottovoce.errors import DistributedError
from sottovoce.graphs import Graph, as_graph
from sottovoce.mechanisms import (
    Mechanism,
    as_mechanism,
    check,
    check_dimension,
    in_blocks,
    shares_edges,
)
from sottovoce.mechanisms.fixed_point import require_sums
from sottovoce.mechanisms.flow import Clock, Flow
from sottovoce.problems.gradients.layout import Loss
from sottovoce.simulation.transcript import Setting
from sottovoce.stepsizes import Stepsize, as_stepsize


class DecentralizedSGD(torch.optim.Optimizer):
    """Train with neighbours only: `step()` is one round, x_i <- Σ_j (w_ij x_j - share_ij).

    Create it after the agents are connected and after the model is on its device: the parameters
    become views of one flat vector. Creating it checks with the other agents that they mean the
    same training. After `backward()`, `step()` draws the private numbers from a cipher keyed by the
    operating system, sends each neighbour a message of its own and sums what it receives; a failed
    round leaves the parameters as they were.

    params: as for any torch optimizer, `model.named_parameters()` best of all, or the model itself:
    then agents compare names, too. stepsize: the algorithm's own default unless given. transport:
    how messages travel; the default process group of torch.distributed unless given, where
    rank = agent. options: see `Options`.
    """

    def __init__(
        self,
        params: nn.Module | Iterable[Any],
        algorithm: Mechanism | str,
        graph: Graph | str,
        stepsize: Stepsize | str | None = None,
        *,
        transport: Transport | None = None,
        **options: Unpack[Options],
    ) -> None:
        asked = completed(options)
        self.graph, self.algorithm = as_graph(graph), as_mechanism(algorithm)
        default = self.algorithm.default_stepsize
        self.stepsize = default if stepsize is None else as_stepsize(stepsize)
        check(self.algorithm, self.graph, self.stepsize)
        self._clipping = Clipping(self.algorithm.bound, asked["batch"], asked["poisson"])
        if asked["links"] == "masked":
            require_sums(self.graph)
        self._closed = False
        module = module_of(params)
        named = params.named_parameters() if isinstance(params, nn.Module) else params
        super().__init__(named, {})
        self._closed = True
        self._failure: str | None = None
        self._not_resumed: str | None = None
        self._regrouped = False
        self._parameters = Parameters(self.param_groups, module)
        self.state_vector = self._parameters.vector
        check_dimension(self.algorithm, self.graph, len(self.state_vector))
        start = starting_point(self.state_vector) if asked["same_start"] else {}
        self._asked = asked
        self._meet(transport or GlooTransport(self.state_vector.device, asked["timeout"]), start)
        if asked["private_start"]:
            dimension, dtype = len(self.state_vector), self.state_vector.dtype
            jitter = self.streams.normal("start", 0, dimension, dtype)
            self.state_vector.add_(jitter[0, 0].mul_(asked["private_start"]))

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
        if self._not_resumed:
            raise DistributedError(f"the training was not resumed: {self._not_resumed}")
        if self._regrouped:
            raise DistributedError(
                "the optimizer went over to another graph and nobody said from where it goes on; "
                "take optimizer.standing before regroup(), and call go_on(standing, folder) after "
                "it, at all agents"
            )
        refuse_rates(self.param_groups)
        self._clipping.require(self._parameters.tensors)
        if self.algorithm.bound is not None:
            self._parameters.require_untouched()
        before = self.state_vector.clone() if self.algorithm.exchanges > 1 else None
        # First of all, so that neighbours who are ahead need not wait for this agent's buffers.
        self._rounds.open(self.round + 1)
        gradients = self._parameters.gradients(self.agent, self.round + 1)
        round = self._course.next_round()
        try:
            self._rounds.play(round, gradients)
        except BaseException as error:
            self._failure = type(error).__name__
            if before is not None:
                self.state_vector.copy_(before)
            raise
        self._course.round = round
        if self.algorithm.bound is not None:
            self._parameters.remember()
        return loss

    @property
    def round(self) -> int:
        """The last round that was finished, 0 before the first."""
        return self._course.round

    @property
    def begun(self) -> int:
        """The newest round that this agent or a neighbour had begun when it was resumed, or 0."""
        return self._course.begun

    @property
    def executions(self) -> Executions:
        """Which rounds this agent has executed, in this process and before: all are charged.

        `sottovoce.spent(optimizer)` says the ε that they cost.
        """
        return self._course.executions

    @property
    def training(self) -> int:
        """The number that the agents gave this training, the same after every restart."""
        return self._course.training

    @property
    def batch(self) -> int | None:
        """The (expected) number of samples in a batch, if the agents agreed on one."""
        return self._clipping.batch

    @property
    def poisson(self) -> bool:
        """Whether batches are Poisson samples."""
        return self._clipping.poisson

    @property
    def bytes_per_message(self) -> int:
        """How many bytes each neighbour is sent in a round."""
        return self._rounds.exchange.bytes_per_message

    def samples(self, count: int, size: int) -> Tensor:
        """Private random indices in [0, size) of the samples for the next round: (count,).

        They depend on the round alone, so a resumed training draws what it would have drawn.
        """
        found = self.streams.integers("data", self.round + 1, count, size)[0, 0].cpu()
        if self.algorithm.bound is not None:
            self._course.draw_from(size)
            self._clipping.drawn(found, poisson=False)
        return found

    def backward(self, model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor) -> None:
        """In place of `loss.backward()`: add (1/B) Σ_n clip(g_n) to the gradients in `.grad`.

        g_n is the gradient of `loss(model(x_n), y_n)` for one sample of inputs and targets, (n,
        ...), clip is what the algorithm bounds samples by, and B is the option `batch`, whatever n
        is. An algorithm that bounds samples takes no other gradients. Refused are modules whose
        samples interact. Returns nothing: a loss of private samples is not protected.
        """
        if self.algorithm.bound is not None:
            self._parameters.require_all_of(model)
        self._clipping.backward(model, loss, inputs, targets, self.streams.seeded)

    def poisson_sample(self, size: int, batch: int | None = None) -> Tensor:
        """Private indices in [0, size) for the next round, each with the rate batch / size.

        size: how many samples this agent has, an agreed constant of the training. batch: the option
        `batch` unless given. Like `samples`, they depend on the round alone. How many there are
        shows in the time that a round takes.
        """
        found = self._clipping.poisson_sample(self.streams, self.round + 1, size, batch)
        self._course.draw_from(size)
        self._clipping.drawn(found, poisson=True)
        return found

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
        return self._course.save(folder, tensors or {}, facts or {})

    def resume(
        self, folder: str | Path, *, journal: bool = False, start_over: bool = False
    ) -> Checkpoint | None:
        """Go on where an earlier process stopped; None where nobody has anything in its folder.

        Every agent must call it, before its first round. With `journal`, everything that is sent is
        on disk before it leaves, and agents that start again send the same bytes and lose no round;
        where no journal is found they go back to the newest checkpoint that all have, with fresh
        secrets, and `executions` counts what is done again. An agent without checkpoints among
        others that have some is an error at all agents. start_over: remove what is in the folder
        and begin; all agents must ask for it.
        """
        self._parameters.forget()
        try:
            checkpoint = self._course.resume(folder, journal, start_over)
        except BaseException as error:
            self._not_resumed = str(error)
            raise
        self._not_resumed, self._regrouped = None, False
        return checkpoint

    @property
    def standing(self) -> Standing:
        """What this agent takes along where it goes on among other neighbours; it holds its model.

        A copy: rounds that follow do not alter it.
        """
        memory = {name: one.clone() for name, one in self._rounds.arithmetic.memory.items()}
        state = self.state_vector.clone()
        return Standing(self.round, self._course.epoch, self.executions, state, memory)

    def regroup(self, graph: Graph | str, transport: Transport) -> None:
        """Go over to another graph, whose agents all do so; `go_on` then says from where.

        No round can be played in between; what was executed stays charged. The parameters keep
        their values. transport: the links to the neighbours in that graph, in which this agent's
        number may be another one.
        """
        if self._recorder is not None:
            raise DistributedError("a recording is of one graph; regroup without record=True")
        graph = as_graph(graph)
        check(self.algorithm, graph, self.stepsize)
        if self._asked["links"] == "masked":
            require_sums(graph)
        self.graph, self._regrouped = graph, True
        self._meet(transport, {}, self._course)

    def go_on(self, standing: Standing, folder: str | Path) -> None:
        """Continue from a standing, which all agents took after the same round and epoch.

        The rounds that follow are a new epoch with fresh secrets, kept with a journal in `folder`.
        What this agent has executed since the standing was taken stays charged.
        """
        self._parameters.forget()
        with torch.no_grad():
            self._course.stand(standing, folder)
        self._regrouped = False

    def close(self) -> None:
        """Wait until no other agent needs this one; call it before the process ends."""
        self.transport.close()

    def save_recording(self, stem: str | Path) -> None:
        """Write to `stem.json` and `stem.safetensors` what this agent sent, got and computed."""
        if self._recorder is None:
            raise DistributedError("nothing was recorded; create the optimizer with record=True")
        self._recorder.save(stem)

    def state_dict(self) -> dict[str, Any]:
        """The round, what parts of the chain remember, and what the round was agreed under.

        Parameters are in the model's own state_dict.
        """
        memory = {name: one.clone() for name, one in self._rounds.arithmetic.memory.items()}
        own = {"round": self.round, "memory": memory, "shared": dict(self._facts)}
        return {**super().state_dict(), **own, "executions": self.executions.to_json()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the round of a `state_dict` of the same training; all agents must do so.

        The rounds that follow are a new epoch, with fresh private numbers. Nobody can tell how many
        rounds another process executed after it made the state, so that `sottovoce.spent` says no ε
        after a state of another process; `save` and `resume` keep account of them.
        """
        require_same(self._facts, state_dict.get("shared", {}), "the state was saved")
        super().load_state_dict(state_dict)
        self.param_groups[:] = [Group(group) for group in self.param_groups]
        self._course.remember(state_dict.get("memory", {}))
        self._parameters.forget()
        executions = Executions.from_json(state_dict.get("executions", ()))
        self._course.go_back(int(state_dict["round"]), executions)
        self._regrouped = False

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
        self.param_groups[-1] = Group(self.param_groups[-1])

    def __getstate__(self) -> NoReturn:
        raise DistributedError(
            "this optimizer holds private keys and open connections, so it cannot be copied or "
            "pickled; use save() and resume()"
        )

    def _meet(
        self, transport: Transport, start: Mapping[str, Any], earlier: Course | None = None
    ) -> None:
        """Agree with the agents of the graph, and lay out all that rounds with them need.

        earlier: what is charged so far.
        """
        asked, vector = self._asked, self.state_vector
        self.transport, self.agent = transport, transport.agent
        setting = Setting(self.graph, self.algorithm, self.stepsize, asked["private_start"])
        facts = shared_facts(setting, self._parameters.tensors, self._parameters.names)
        self._facts = {**facts, "links": asked["links"], **self._clipping.facts}
        seeded = asked["insecure_seed"] is not None
        edges = not seeded and shares_edges(self.algorithm, self.graph)
        agreed = (self.algorithm, self.stepsize, self.batch, self.poisson)
        settings = number_of_settings(*agreed, seeded)
        course = Course(transport, self.graph, self._facts, edges, start, settings)
        if earlier is not None:
            course.follow(earlier)
        self._course = course
        reach = max(part.reach for part in self.algorithm.parts)
        seed, dimension = asked["insecure_seed"], len(vector)
        self.streams = AgentStreams(self.agent, seed, vector.device, dimension, reach)
        self.streams.begin(0, None, self._course.edge_keys)
        record, links = asked["record"], asked["links"]
        self._recorder = AgentRecorder(self.agent, setting, vector, links) if record else None
        self._rounds = self._lay_out(asked)
        self._course.play(self._rounds)

    def _lay_out(self, asked: Options) -> Rounds:
        """What plays this agent's rounds, with all buffers."""
        neighbours, vector = self.graph.neighbours(self.agent), self.state_vector
        masks = Masks(self.transport, self.graph) if asked["links"] == "masked" else None
        ending = CHECK_WORDS if masks else 0
        exchange = Exchange(self.transport, neighbours, vector, asked["norm_bound"], ending)
        state, routes = vector.view(1, 1, -1), self.graph.routes(self.agent).to(vector.device)
        several = self.algorithm.exchanges > 1 or bool(self.algorithm.at("state"))
        arithmetic = Arithmetic(
            self.algorithm,
            Flow(state, state, routes, self.streams, self.stepsize, Clock(1)),
            self._parameters.sizes,
            exchange,
            whole=several or not in_blocks(self.algorithm, self.graph),
            keep=asked["record"],
            codec=masks.codec if masks else None,
        )
        own = (self.streams, vector, self._recorder, masks)
        return Rounds(self.algorithm, exchange, arithmetic, *own)
