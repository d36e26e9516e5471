"""pfl's federated averaging on the paper's CNN, in a process of its own.

Needs PyTorch and `pfl` 0.6 with its dependencies on the path, and knows nothing of sottovoce.
Answers a line {"clients": 1000, "iterations": 3, "steps": 1, "batch": 64, "precision": "float32",
"compiled": false} with the seconds of a central iteration. Every client takes part in every
iteration and makes `steps` local steps of SGD on its own samples, which lie on the device already;
nothing is evaluated.
"""

import asyncio
import json
import sys
import time
from functools import cache
from typing import Any

import torch
from peer_cnn import DEVICE, paper_cnn, wait
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn


class Client(nn.Module):
    """The paper's CNN with what pfl asks of a module."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = paper_cnn()

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.layers(images), labels)

    def metrics(self, images: Tensor, labels: Tensor) -> dict[str, Weighted]:
        with torch.no_grad():
            return {"loss": Weighted(float(self.loss(images, labels)) * len(labels), len(labels))}


class Clock(TrainingProcessCallback):
    """When each central iteration ended."""

    def __init__(self) -> None:
        self.ticks = list[float]()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        wait()
        self.ticks.append(time.perf_counter())
        return False, Metrics()


@cache
def users(clients: int, samples: int) -> list[Dataset]:
    """Each client's images and labels."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(clients, samples, 1, 28, 28, generator=generator).to(DEVICE)
    labels = torch.randint(10, (clients, samples), generator=generator).to(DEVICE)
    return [Dataset(raw_data=pair) for pair in zip(images, labels, strict=True)]


@cache
def model(precision: str, compiled: bool) -> PyTorchModel:
    torch.manual_seed(0)
    module = Client()
    return PyTorchModel(
        module,
        torch.optim.SGD,
        torch.optim.SGD(module.parameters(), lr=1.0),
        amp_dtype=getattr(torch, precision),
        use_torch_compile=compiled,
    )


def respond(
    clients: int, iterations: int, steps: int, batch: int, precision: str, compiled: bool
) -> dict[str, Any]:
    data = users(clients, batch * steps)
    federated = FederatedDataset(
        lambda user: data[user], get_user_sampler("minimize_reuse", range(clients))
    )
    clock = Clock()
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=iterations + 1,
            evaluation_frequency=10**9,
            train_cohort_size=clients,
            val_cohort_size=0,
        ),
        SimulatedBackend(federated, federated),
        model(precision, compiled),
        NNTrainHyperParams(
            local_num_epochs=None,
            local_learning_rate=0.01,
            local_batch_size=batch,
            local_num_steps=steps,
        ),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )
    taken = (clock.ticks[-1] - clock.ticks[0]) / iterations
    return {"seconds": taken, "client_steps_a_second": clients * steps / taken}


if __name__ == "__main__":
    asyncio.set_event_loop(asyncio.new_event_loop())
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        print(json.dumps(respond(**json.loads(line))), file=answers, flush=True)
