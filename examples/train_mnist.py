"""Train a CNN on MNIST among neighbours: this process is one agent.

    torchrun --standalone --nproc-per-node 5 examples/train_mnist.py

Add `--max-restarts 3` and `--checkpoint runs/mnist` to survive the loss of a process.
"""

import argparse

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from sottovoce import PDSGD, parse_graph, parse_stepsize
from sottovoce.distributed import DecentralizedSGD, connect
from sottovoce.problems.data import sets as datasets
from sottovoce.problems.data.models import small_cnn
from sottovoce.problems.data.partitions import equal

parser = argparse.ArgumentParser()
parser.add_argument("--graph", default="ring:5")
parser.add_argument("--stepsize", default="uniform:0.3/k", help="k counts epochs")
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--device", default="cpu")
parser.add_argument("--checkpoint", help="folder to resume from and to save to")
options = parser.parse_args()

agent = connect(options.device)
graph = parse_graph(options.graph)

# Only this agent's part of the images is used; in earnest each agent would load its own data.
data = datasets.load("subset")
own = data.training.subset(equal(data.training.labels, graph.agents, seed=0).indices[agent])
images, labels = own.standardised().to(options.device), own.labels.to(options.device)
test_images = data.validation.standardised().to(options.device)
test_labels = data.validation.labels.to(options.device)

# The seed makes all agents start from the same public weights.
model = small_cnn(seed=0).to(options.device)
rounds = len(images) // options.batch_size
stepsize = parse_stepsize(f"{options.stepsize}:block={rounds}")
optimizer = DecentralizedSGD(model.parameters(), PDSGD(), graph, stepsize)
if options.checkpoint:
    optimizer.resume(options.checkpoint)

while optimizer.round < options.epochs * rounds:
    batch = optimizer.samples(options.batch_size, len(images)).to(images.device)
    optimizer.zero_grad()
    cross_entropy(model(images[batch]), labels[batch]).backward()
    optimizer.step()
    if optimizer.round % rounds == 0:
        with torch.no_grad():
            accuracy = (model(test_images).argmax(1) == test_labels).float().mean()
        print(
            f"epoch {optimizer.round // rounds}, agent {agent}: accuracy {accuracy:.3f}", flush=True
        )
        if options.checkpoint:
            optimizer.save(options.checkpoint)

dist.barrier()
dist.destroy_process_group()
