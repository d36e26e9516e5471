"""The paper's CNN in bare torch, for peers that run in environments without sottovoce."""

from itertools import pairwise

import torch
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def paper_cnn() -> nn.Sequential:
    """1,676,266 parameters: images (n, 1, 28, 28) to scores (n, 10)."""
    widths, layers = (1, 32, 32, 64, 64), list[nn.Module]()
    for number, (inputs, outputs) in enumerate(pairwise(widths)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.Sigmoid()]
        layers += [nn.MaxPool2d(2)] if number % 2 else []
    dense = (nn.Flatten(), nn.Linear(64 * 7 * 7, 512), nn.Sigmoid(), nn.Linear(512, 10))
    return nn.Sequential(*layers, *dense)


def wait() -> None:
    """Until the device has done what it was told."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
