"""A residual network with group norm: what users train that is no plain stack."""

import torch
from torch import Tensor, nn


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions, each behind a group norm, added to what came in."""

    def __init__(self, inputs: int, outputs: int, stride: int, groups: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.GroupNorm(groups, outputs) for _ in range(2))
        same = stride == 1 and inputs == outputs
        self.short = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(self.norms[1](self.second(y)) + self.short(x))


class ResidualNetwork(nn.Module):
    """Images (n, channels, H, W) to scores (n, classes): 308,266 parameters with width 32.

    A convolution, three blocks of which the second and third halve the image and double the
    channels, the mean over the image, and a dense layer.
    """

    def __init__(
        self, width: int = 32, channels: int = 3, classes: int = 10, groups: int = 8
    ) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, width, 3, 1, 1, bias=False)
        self.norm = nn.GroupNorm(groups, width)
        self.blocks = nn.Sequential(
            ResidualBlock(width, width, 1, groups),
            ResidualBlock(width, 2 * width, 2, groups),
            ResidualBlock(2 * width, 4 * width, 2, groups),
        )
        self.out = nn.Linear(4 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        y = self.blocks(torch.relu(self.norm(self.stem(x))))
        scores: Tensor = self.out(y.mean((2, 3)))
        return scores
