"""A member's script with repeatable numbers, for comparing networks: its weights to a file."""

import sys
import warnings

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import sottovoce.distributed as sd
from sottovoce.randomness import InsecureSeedWarning

warnings.simplefilter("ignore", InsecureSeedWarning)
torch.manual_seed(0)
federation = sd.federation()
model = nn.Linear(20, 3)
images = torch.randn(200, 20)[federation.agent :: 3]
labels = images[:, :3].argmax(1)
optimizer = federation.optimizer(model, insecure_seed=5)
while optimizer.round < federation.rounds:
    batch = optimizer.samples(8, len(images))
    optimizer.zero_grad()
    cross_entropy(model(images[batch]), labels[batch]).backward()
    optimizer.step()
sd.save_weights(model, sys.argv[1])
