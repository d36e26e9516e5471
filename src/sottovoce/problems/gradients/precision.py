"""What a module makes of its inputs when activations have fewer bits than its parameters."""

import torch
from torch import Tensor, nn
from torch.func import functional_call

from sottovoce.errors import ProblemError


def evaluated(
    model: nn.Module, parameters: dict[str, Tensor], inputs: Tensor, reduced: torch.dtype | None
) -> Tensor:
    """The outputs in the parameters' own type; products and activations have the type `reduced`.

    Gradients flow back through the conversions, to parameters of the type that they were given in.
    """
    if reduced is None:
        outputs: Tensor = functional_call(model, parameters, (inputs,))
        return outputs
    own = next(iter(parameters.values())).dtype
    everything = {**dict(model.named_parameters()), **dict(model.named_buffers()), **parameters}
    fewer = {name: _fewer(one, reduced) for name, one in everything.items()}
    try:
        outputs = functional_call(model, fewer, (_fewer(inputs, reduced),))
    except RuntimeError as error:
        if "type" not in str(error):
            raise
        raise ProblemError(
            f"{type(model).__name__} cannot be computed in {reduced}: {error}; use float32"
        ) from error
    return outputs.to(own)


def _fewer(one: Tensor, reduced: torch.dtype) -> Tensor:
    return one.to(reduced) if one.is_floating_point() else one
