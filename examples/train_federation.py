"""One organisation's agent: a model for MNIST, trained on images that never leave it."""

from torch import nn
from torch.nn.functional import cross_entropy

import sottovoce.distributed as sd
from sottovoce.problems.data.sets import load

federation = sd.federation()  # the agreement that `sottovoce agent` was given

data = load("subset")  # your own data here; in this example every third image
images = data.training.standardised()[federation.agent :: 3]
labels = data.training.labels[federation.agent :: 3]
model = nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))

optimizer = federation.optimizer(model)
while optimizer.round < federation.rounds:
    batch = optimizer.samples(32, len(images))
    optimizer.zero_grad()
    cross_entropy(model(images[batch]), labels[batch]).backward()
    optimizer.step()

right = model(data.validation.standardised()).argmax(1) == data.validation.labels
print(f"{federation.name}: accuracy {right.double().mean():.3f} after round {optimizer.round}")
sd.save_weights(model, f"{federation.name}.safetensors")
