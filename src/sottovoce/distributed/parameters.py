"""A model's parameters as one vector, and the traps of torch that would quietly spoil it."""

import inspect
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.utils import vector_to_parameters

from sottovoce.distributed.frames import DTYPES, all_finite
from sottovoce.errors import DistributedError

_NO_RATE = (
    "there is no learning rate to schedule: the agents agreed on one public stepsize schedule "
    "when they started. Give DecentralizedSGD a Stepsize whose schedule does what is wanted "
    "(Power, or Custom with a function of k)"
)


class LocalBuffersWarning(UserWarning):
    """A model keeps statistics of this agent's data that are not averaged with the neighbours'."""


class Group(dict[str, Any]):
    """A parameter group that tells a learning-rate scheduler why there is nothing to schedule."""

    def __missing__(self, key: str) -> NoReturn:
        if key == "lr":
            raise DistributedError(_NO_RATE)
        raise KeyError(key)

    def __setitem__(self, key: str, value: Any) -> None:
        if key == "lr":
            raise DistributedError(_NO_RATE)
        super().__setitem__(key, value)


def refuse_rates(groups: Iterable[Mapping[str, Any]]) -> None:
    """Raise if somebody has given a group a learning rate, which nothing would heed."""
    if any("lr" in group for group in groups):
        raise DistributedError(_NO_RATE)


class Parameters:
    """The trainable parameters of an optimizer's groups as views of one vector, in their order.

    Frozen parameters (`requires_grad` is False) are left alone: they are not sent and keep their
    value. module: the model, where it is known. vector: (d,). names: of the parameters, None where
    nobody told them.
    """

    def __init__(self, groups: Sequence[Mapping[str, Any]], module: nn.Module | None) -> None:
        held = [one for group in groups for one in group["params"]]
        self.tensors = [one for one in held if one.requires_grad]
        self._frozen = [one for one in held if not one.requires_grad]
        if not self.tensors:
            raise DistributedError(
                f"none of the {len(held)} parameters requires a gradient; accepted: at least one "
                "that does"
            )
        self.names = _names(groups, self.tensors, module)
        self._places = _places(self.tensors, module)
        if found := statistics_of(module):
            warnings.warn(
                f"the model keeps running statistics ({', '.join(found[:3])}): they stay with this "
                "agent, are not averaged, and are in a checkpoint only if save(tensors=...) is "
                "given them. GroupNorm and LayerNorm have none",
                LocalBuffersWarning,
                stacklevel=4,
            )
        first = self.tensors[0]
        kinds = {(p.dtype, p.device) for p in self.tensors}
        if len(kinds) > 1 or first.dtype not in DTYPES:
            found = sorted(f"{dtype} on {device}" for dtype, device in kinds)
            raise DistributedError(
                f"the parameters are {', '.join(found)}; accepted: all float32 or all float64, on "
                "one device"
            )
        # In the logical order of the numbers, whatever the memory format was.
        self.vector = torch.cat([p.detach().reshape(-1) for p in self.tensors])
        vector_to_parameters(self.vector, self.tensors)
        self._addresses = [parameter.data_ptr() for parameter in self.tensors]
        self._versions: list[int] | None = None
        self._sum = 0
        self._still: dict[int, tuple[Tensor, int, int]] = {}

    @property
    def sizes(self) -> list[int]:
        """How many numbers each parameter has."""
        return [parameter.numel() for parameter in self.tensors]

    def gradients(self, agent: int, round: int) -> list[Tensor | None]:
        """Every parameter's gradient as a vector, all finite; None where it has none."""
        self._require_unchanged()
        for place, parameter in enumerate(self.tensors):
            if parameter.grad is not None and parameter.grad.layout != torch.strided:
                raise DistributedError(
                    f"the gradient of {self._name(place)} is sparse; accepted: dense gradients "
                    "(nn.Embedding(..., sparse=False))"
                )
        found = [None if p.grad is None else p.grad.reshape(-1) for p in self.tensors]
        if not all_finite([gradient for gradient in found if gradient is not None]):
            raise DistributedError(
                f"the gradient of agent {agent} holds NaN or infinite numbers in round {round}; "
                "nothing was sent"
            )
        return found

    def remember(self) -> None:
        """Note that the parameters are as a round left them."""
        self._versions = [parameter._version for parameter in self.tensors]
        self._sum = checksum([self.vector])

    def forget(self) -> None:
        """Take the parameters as they are: they are about to be put back by the agents."""
        self._versions = None
        self._still.clear()

    def require_untouched(self) -> None:
        """Raise if anything but rounds has altered the parameters since the last one.

        A second optimizer, say, would put samples into the state that no bound has shortened.
        Rounds write to the vector below the parameters, which leaves torch's counters of changes
        alone. Writing to `.data` does so too; the sum of the numbers' bits shows it.
        """
        if self._versions is None:
            return
        for place, (parameter, version) in enumerate(
            zip(self.tensors, self._versions, strict=True)
        ):
            if parameter._version != version:
                raise _altered(self._name(place))
        if checksum([self.vector]) != self._sum:
            raise _altered("a parameter's .data")

    def require_all_of(self, model: nn.Module) -> None:
        """Raise if something else is to train a part of the model, or has altered a frozen one.

        Gradients here would depend on that part, and through it on samples without any noise.
        """
        own = {id(one) for one in self.tensors}
        for name, one in model.named_parameters():
            if id(one) in own:
                continue
            now = one, one._version, one.data_ptr()
            if self._still.setdefault(id(one), now)[1:] != now[1:]:
                raise _altered(f"the frozen parameter {name}")
            if one.requires_grad:
                raise DistributedError(
                    f"the model has the parameter {name}, which this optimizer does not train: if "
                    "another one does, samples enter these gradients past the noise, and nothing "
                    "is proved; give this optimizer all of the model, or freeze that part "
                    "(requires_grad_(False))"
                )

    def _require_unchanged(self) -> None:
        """Raise if the model or its groups are no longer what the agents agreed on."""
        for place, (parameter, address) in enumerate(
            zip(self.tensors, self._addresses, strict=True)
        ):
            moved = parameter.data_ptr() != address
            holders = self._places[place]
            if moved or any(one._parameters.get(leaf) is not parameter for one, leaf in holders):
                raise DistributedError(
                    f"the storage of a parameter changed after the optimizer was created "
                    f"({self._name(place)}; by model.to(), load_state_dict(assign=True) or "
                    "assignment); move and load the model first, then create the optimizer"
                )
            if not parameter.requires_grad:
                raise DistributedError(
                    f"{self._name(place)} was frozen after the optimizer was created; the agents "
                    "agreed on what is trained: freeze first, then create the optimizer"
                )
        if any(one.requires_grad or one.grad is not None for one in self._frozen):
            raise DistributedError(
                "a frozen parameter was made trainable after the optimizer was created; the agents "
                "agreed on what is trained: unfreeze first, then create the optimizer"
            )

    def _name(self, place: int) -> str:
        return f"parameter {self.names[place] if self.names else place}"


def checksum(tensors: Iterable[Tensor]) -> int:
    """The sum of all numbers' bits as integers, which hardly any change of them keeps."""
    whole = {4: torch.int32, 8: torch.int64}
    each = (one.detach().reshape(-1).view(whole[one.element_size()]).sum() for one in tensors)
    return int(sum(each, torch.zeros((), dtype=torch.int64)))


def _altered(what: str) -> DistributedError:
    return DistributedError(
        f"{what} was altered between two rounds, and not by this optimizer; what is proved of the "
        "algorithm holds only where nothing else changes the parameters: leave them to "
        "optimizer.step(); nothing was sent"
    )


def module_of(params: Any) -> nn.Module | None:
    """The model whose `parameters()` or `named_parameters()` was passed, where it can be told."""
    if isinstance(params, nn.Module):
        return params
    owner = inspect.getgeneratorlocals(params).get("self") if inspect.isgenerator(params) else None
    return owner if isinstance(owner, nn.Module) else None


def statistics_of(module: nn.Module | None) -> list[str]:
    """The names of buffers that training changes from the agent's data, such as BatchNorm's."""
    if module is None:
        return []
    return [
        f"{name}.running_mean" if name else "running_mean"
        for name, one in module.named_modules()
        if isinstance(one, _NormBase) and one.running_mean is not None
    ]


def _places(
    parameters: Iterable[Tensor], module: nn.Module | None
) -> list[list[tuple[nn.Module, str]]]:
    """For each parameter the modules that hold it, and under which name."""
    holders: dict[int, list[tuple[nn.Module, str]]] = {}
    for owner in module.modules() if module is not None else ():
        for leaf, one in owner._parameters.items():
            holders.setdefault(id(one), []).append((owner, leaf))
    return [holders.get(id(one), []) for one in parameters]


def _names(
    groups: Iterable[Mapping[str, Any]], parameters: Iterable[Tensor], module: nn.Module | None
) -> list[str] | None:
    """The names of the parameters, as their groups tell them, or else the module."""
    named = {
        id(one): name
        for group in groups
        for one, name in zip(group["params"], group.get("param_names", ()), strict=False)
    }
    if not named and module is not None:
        named = {id(one): name for name, one in module.named_parameters()}
    found = [named.get(id(one)) for one in parameters]
    return None if None in found else [str(name) for name in found]
