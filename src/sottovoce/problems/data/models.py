"""Networks that the experiments train, and initial weights from which plain SGD can train them."""

import math

import torch
from torch import Tensor, nn

from sottovoce.errors import ProblemError

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "sigmoid": nn.Sigmoid,
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
}

_WEIGHTED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NORMALISING = (nn.GroupNorm, nn.LayerNorm)


def paper_cnn(activation: str = "sigmoid", seed: int = 0) -> nn.Sequential:
    """Build the paper's CNN: 1,676,266 parameters, images (n, 1, 28, 28) to class scores (n, 10).

    Convolutions 3x3 "same" with 32, 32, 64, 64 channels, a max pool after each pair, dense 512,
    dense 10; the activation follows every layer but the last. Weights come from `initialise`.
    """
    act = _activation(activation)
    with torch.device("meta"):
        model = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            act(),
            nn.Conv2d(32, 32, 3, padding=1),
            act(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            act(),
            nn.Conv2d(64, 64, 3, padding=1),
            act(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * 7 * 7, 512),
            act(),
            nn.Linear(512, 10),
        )
    return _materialised(model, seed, activation)


def small_cnn(activation: str = "sigmoid", seed: int = 0) -> nn.Sequential:
    """Build a CNN for CPUs: 19,430 parameters, images (n, 1, 28, 28) to class scores (n, 10).

    Convolutions 6x6 with stride 2 and 12, 32 channels, dense 10. The dense layer sees only 512
    inputs: of the stacks tried, most with 980 or more stayed at chance at large stepsizes.
    Weights come from `initialise`.
    """
    act = _activation(activation)
    with torch.device("meta"):
        model = nn.Sequential(
            nn.Conv2d(1, 12, 6, stride=2),
            act(),
            nn.Conv2d(12, 32, 6, stride=2),
            act(),
            nn.Flatten(),
            nn.Linear(32 * 4 * 4, 10),
        )
    return _materialised(model, seed, activation)


def softmax_regression(activation: str = "sigmoid", seed: int = 0) -> nn.Sequential:
    """Build softmax regression: 7,850 parameters, images (n, 1, 28, 28) to class scores (n, 10).

    There is no activation; its name says which of the rules of `initialise` sets the weights.
    """
    with torch.device("meta"):
        model = nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 10))
    return _materialised(model, seed, activation)


def tanh_cnn(activation: str = "tanh", seed: int = 0) -> nn.Sequential:
    """Build the CNN of studies with a guarantee: 26,010 parameters, images to class scores.

    Convolutions 8x8 with stride 2, padding 2 and 16 channels, and 4x4 with stride 2 and 32, a max
    pool of 2 with stride 1 after each, dense 32, dense 10 (Papernot et al. 2021 use it with tanh:
    bounded activations lose less to clipping). Weights come from `initialise`.
    """
    act = _activation(activation)
    with torch.device("meta"):
        model = nn.Sequential(
            nn.Conv2d(1, 16, 8, stride=2, padding=2),
            act(),
            nn.MaxPool2d(2, 1),
            nn.Conv2d(16, 32, 4, stride=2),
            act(),
            nn.MaxPool2d(2, 1),
            nn.Flatten(),
            nn.Linear(32 * 4 * 4, 32),
            act(),
            nn.Linear(32, 10),
        )
    return _materialised(model, seed, activation)


def initialise(model: nn.Module, seed: int, activation: str = "sigmoid") -> None:
    """Overwrite all weights of `model` with values that let plain SGD train it; biases become 0.

    Sigmoid: N(0, 16 / fan_in), because the sigmoid's slope is at most 1/4; after the first layer
    each output unit's mean weight is removed, because sigmoid outputs are centred at 1/2; the last
    layer is divided by 4, because no sigmoid follows it. ReLU: N(0, 2 / fan_in) (He et al. 2015).
    Tanh: uniform with variance 2 / (fan_in + fan_out) (Glorot and Bengio 2010).

    The numbers come from a generator of their own: equal seeds give equal weights on every device,
    and torch's global generator keeps its state. First and last are meant in the order of
    `model.modules()`. Group and layer norms return to scale 1 and shift 0.
    """
    _activation(activation)
    layers = _weighted_layers(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for index, layer in enumerate(layers):
            fan_in = layer.weight[0].numel()
            shape = layer.weight.shape
            if activation == "tanh":
                fan_out = shape[0] * layer.weight[0, 0].numel()
                bound = math.sqrt(6 / (fan_in + fan_out))
                weight = (torch.rand(shape, generator=generator) * 2 - 1) * bound
            else:
                variance = (16 if activation == "sigmoid" else 2) / fan_in
                weight = torch.randn(shape, generator=generator) * math.sqrt(variance)
            if activation == "sigmoid":
                weight = _centred(weight) if index > 0 else weight
                weight = weight / 4 if index == len(layers) - 1 else weight
            layer.weight.copy_(weight)
            if layer.bias is not None:
                layer.bias.zero_()


def _centred(weight: Tensor) -> Tensor:
    return weight - weight.flatten(1).mean(1).reshape(-1, *[1] * (weight.ndim - 1))


def _activation(name: str) -> type[nn.Module]:
    if name not in ACTIVATIONS:
        raise ProblemError(f"unknown activation {name!r}; accepted are {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def _materialised(model: nn.Sequential, seed: int, activation: str) -> nn.Sequential:
    # Built on the meta device: torch's own initial weights would draw from the global generator.
    model.to_empty(device="cpu")
    initialise(model, seed, activation)
    return model


def _weighted_layers(model: nn.Module) -> list[nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d]:
    layers = []
    for name, module in model.named_modules():
        if isinstance(module, _WEIGHTED):
            layers.append(module)
        elif isinstance(module, _NORMALISING):
            module.reset_parameters()
        elif next(module.parameters(recurse=False), None) is not None:
            raise ProblemError(
                f"layer {name or 'model'!r} ({type(module).__name__}) has weights that no rule of "
                "initialise covers; accepted are Linear, Conv1d to Conv3d, GroupNorm and LayerNorm"
            )
    if not layers:
        raise ProblemError("the model has no Linear or convolution layer to initialise")
    return layers
