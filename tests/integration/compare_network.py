"""Agents in network namespaces must end with the bits of agents on loopback."""

import sys
import tempfile
from pathlib import Path

import launching
import torch

from sottovoce.storage.tensors import read_tensors

folder, agents = Path(sys.argv[1]), int(sys.argv[2])
with tempfile.TemporaryDirectory() as name:
    calm = Path(name) / "calm"
    launching.calm(calm, agents, 20, 5)
    for agent in range(agents):
        ends = [read_tensors(f / f"final-{agent}.safetensors")[0]["x"] for f in (folder, calm)]
        if not torch.equal(*ends):
            raise SystemExit(f"agent {agent} ended with other numbers than on loopback")
print(f"{agents} agents in namespaces of their own ended with the numbers of {agents} on loopback")
