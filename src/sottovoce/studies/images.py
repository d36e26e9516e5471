"""The networks and images that are audited."""

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from sottovoce.charts.png import encode_text
from sottovoce.errors import ProblemError
from sottovoce.privacy.readers import Inputs, Search
from sottovoce.problems import ModuleProblem
from sottovoce.problems.data import partitions, sets
from sottovoce.storage.user_files import is_in_file
from sottovoce.studies.settings import option
from sottovoce.studies.training import MNIST_PIXELS, Training, samples
from sottovoce.studies.workloads import WORKLOADS

_SHOWN = 8
"""Targets whose images are kept in a study."""


@dataclass(frozen=True, kw_only=True)
class Images:
    """Which network is audited, on which images, from which starting weights."""

    model: str = option(
        "small",
        "paper (1,676,266 parameters), small (19,430) or softmax (7,850); census: linear; text: "
        "embedding (66,816) or transformer (477,344); small is the smallest of each.",
    )
    init: str | None = option(
        None, "Starting weights: trainable (standardised pixels) or, paper's default, glorot:4."
    )
    data: str = option(
        "subset", "subset, census or text (shipped), census-full, mnist or fashion-mnist."
    )
    data_dir: str | None = option(
        None, "Folder of the files of a full set (or set SOTTOVOCE_DATA)."
    )
    device: str = option("cpu", "cpu or cuda.")

    @property
    def start(self) -> str:
        """The starting weights: those asked for, or the model's own kind."""
        return self.init or ("glorot:4" if self.model == "paper" else "trainable")

    def problem(self, agents: int, batch: int = 1) -> tuple[ModuleProblem, Inputs]:
        """Training images or other records divided over agents, and what is public about them.

        From `trainable` weights plain SGD learns, with standardised pixels; `glorot:4` is Glorot's
        uniform weights times a gain, with biases 0 and pixels in [0, 1].
        """
        if self.data in WORKLOADS:
            return WORKLOADS[self.data](self.data_dir).problem(self.model, agents, batch)
        if sets.OLD_NAMES.get(self.data, self.data) not in (known := ("subset", *sets.SOURCES)):
            accepted = ", ".join((*known, *WORKLOADS))
            own = " (your own model and data are audited from Python, by sottovoce.audit)"
            raise ProblemError(
                f"data {self.data!r} are not known; accepted: {accepted}"
                f"{own if is_in_file(self.data) else ''}"
            )
        if self.device.startswith("cuda") and not torch.cuda.is_available():
            raise ProblemError(f"device {self.device!r} is not here; accepted: cpu")
        training = Training(model=self.model, data=self.data, device=self.device, batch=batch)
        kind, _, gain = self.start.partition(":")
        if kind not in ("trainable", "glorot") or (
            gain and not gain.replace(".", "", 1).isdecimal()
        ):
            raise ProblemError(f"init {self.init!r} is not known; accepted: trainable, glorot:4")
        images = sets.load(self.data, self.data_dir).training
        trainable = kind == "trainable"
        init = None if trainable else partial(_glorot, gain=float(gain or 4))
        pixels = MNIST_PIXELS if trainable else (0.0, 1.0)
        data = samples(images, partitions.equal(images.labels, agents, 0), pixels)
        return training.problem(data, init=init), Inputs((1, 28, 28), batch, 0.0, 1.0, *pixels)

    def public(self) -> tuple[Tensor, Tensor]:
        """Images of the same kind that no agent has, as the model is fed them, and labels."""
        if self.data in WORKLOADS:
            return WORKLOADS[self.data](self.data_dir).public()
        images = sets.load(self.data, self.data_dir).validation
        pixels = MNIST_PIXELS if self.start == "trainable" else (0.0, 1.0)
        return images.standardised(*pixels), images.labels


@dataclass(frozen=True, kw_only=True)
class Attacking:
    """How many targets are attacked, and how hard their images are searched for."""

    targets: int = option(8, "How many (run, agent) pairs to attack.", min=1)
    iterations: int = option(200, "L-BFGS steps of a search.", min=1)
    warmup: int | None = option(
        None, "Adam steps before them; by default as the model asks.", min=0
    )
    restarts: int = option(2, "Starting points of a search.", min=1)

    def search(self, trace: tuple[int, ...] = ()) -> Search:
        """The search of every reader."""
        return Search(self.iterations, self.warmup, self.restarts, trace=trace)


def pictures(images: Tensor) -> list[str]:
    """The first image of the first targets, as PNG in base64."""
    return [encode_text(target[0, 0], 2) for target in images[:_SHOWN]]


def _glorot(model: nn.Module, seed: int, gain: float) -> None:
    """Uniform on ±gain √(6 / (fan_in + fan_out)) (Glorot and Bengio 2010); biases 0."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                fan_in, area = layer.weight[0].numel(), layer.weight[0, 0].numel()
                bound = gain * math.sqrt(6 / (fan_in + layer.weight.shape[0] * area))
                draws = torch.rand(layer.weight.shape, generator=generator) * 2 - 1
                layer.weight.copy_(bound * draws)
                if layer.bias is not None:
                    layer.bias.zero_()
