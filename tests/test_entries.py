"""DECOR and Zip-DL as entries, in files of a user's own, are the chains of the package."""

from pathlib import Path

import pytest
import torch

from sottovoce import DECOR, Estimation, ProofSettings, parse_algorithm, prove, ring, simulate
from sottovoce.mechanisms import check

EXAMPLES = Path(__file__).parents[1] / "examples"
ENTRIES = {
    "entry_decor.py:decor:0.02:0.05:1.0": "decor:0.02:0.05:1.0:weights",
    "entry_zip_dl.py:zip_dl:0.3": "zip-dl:0.3",
}


@pytest.mark.parametrize(("entry", "name"), ENTRIES.items())
def test_an_entry_plays_the_numbers_of_the_built_in_chain(entry, name):
    file = EXAMPLES / entry.partition(":")[0]
    lines = file.read_text("utf-8").splitlines()
    assert len(lines) <= 60
    assert all("sottovoce." not in line for line in lines if "import" in line)
    mine = parse_algorithm(f"{EXAMPLES}/{entry}")
    check(mine, ring(5))
    problem = Estimation.random(5, n=50, seed=0).with_batches(5, poisson=True)
    ends = [
        simulate(problem, one, "ring:5", steps=20, runs=4, insecure_seed=3).final
        for one in (mine, parse_algorithm(name))
    ]
    assert torch.allclose(*ends, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(ends[0][0], ends[0][1])


def test_the_entry_of_decor_is_proved_as_the_built_in_chain_is():
    settings = ProofSettings(rounds=50, samples=1000, batch=64)
    mine = parse_algorithm(f"{EXAMPLES}/entry_decor.py:decor:0.02:0.05")
    found = [prove(one, "ring:5", settings=settings).epsilon for one in (mine, DECOR(0.02, 0.05))]
    assert found[0] == pytest.approx(found[1], rel=1e-9)
