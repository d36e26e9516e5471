"""Train a CNN on MNIST with a proved ε for every record: this process is one agent.

    torchrun --standalone --nproc-per-node 5 examples/train_private.py

The noise is what `sottovoce plan --epsilon 8 --samples 1000 --batch-size 128 --rounds 100` prints.
Beside an ordinary training loop two lines differ: which samples are drawn, and `backward`.
"""

import argparse

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from sottovoce import parse_graph, spent
from sottovoce.distributed import DecentralizedSGD, connect
from sottovoce.problems.data import sets as datasets
from sottovoce.problems.data.models import tanh_cnn
from sottovoce.problems.data.partitions import equal

parser = argparse.ArgumentParser()
parser.add_argument("--graph", default="ring:5")
parser.add_argument("--algorithm", default="dp-pdsgd:0.00410528:0.0126479:1.0:uniform")
parser.add_argument("--rounds", type=int, default=100)
parser.add_argument("--batch-size", type=int, default=128, help="expected number of samples")
parser.add_argument("--delta", type=float, default=1e-5)
options = parser.parse_args()

agent = connect()
graph = parse_graph(options.graph)

# Only this agent's part of the images is used; in earnest each agent would load its own data.
data = datasets.load("subset")
own = data.training.subset(equal(data.training.labels, graph.agents, seed=0).indices[agent])
images, labels = own.standardised(), own.labels
test_images, test_labels = data.validation.standardised(), data.validation.labels

model = tanh_cnn(seed=0)
optimizer = DecentralizedSGD(
    model,
    options.algorithm,
    graph,
    f"2:falling={options.rounds}",
    batch=options.batch_size,
    poisson=True,
)

while optimizer.round < options.rounds:
    optimizer.zero_grad()
    batch = optimizer.poisson_sample(len(images))
    optimizer.backward(model, cross_entropy, images[batch], labels[batch])
    optimizer.step()
    if optimizer.round % 25 == 0 or optimizer.round == options.rounds:
        with torch.no_grad():
            accuracy = (model(test_images).argmax(1) == test_labels).float().mean()
        epsilon = spent(optimizer, delta=options.delta).epsilon
        print(
            f"round {optimizer.round}, agent {agent}: accuracy {accuracy:.3f}, ε = {epsilon:.3f} "
            f"at δ = {options.delta:g} for one record",
            flush=True,
        )

optimizer.close()
dist.destroy_process_group()
