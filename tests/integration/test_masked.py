"""Real agents with masked links under torchrun: the simulator's bits, and nothing on the wire."""

import json
import struct
from pathlib import Path

import launching
import masked_cases
import pytest
import torch

from sottovoce import Recording, simulate
from sottovoce.distributed import join_recordings
from sottovoce.mechanisms.fixed_point import STEP
from sottovoce.simulation.options import Options
from sottovoce.storage.tensors import read_tensors

pytestmark = pytest.mark.integration
AGENT = Path(__file__).parent / "masked_agent.py"


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("masked")
    done = launching.torchrun(4, folder, script=AGENT)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def words(content: bytes) -> set[int]:
    return {word for (word,) in struct.iter_unpack("<i", content)}


# One test, so that one worker starts the agents.
def test_masked_agents_give_the_simulator_s_bits_and_send_none_of_the_integers(four: Path) -> None:
    for name, case in masked_cases.cases().items():
        rounds = range(1, masked_cases.ROUNDS + 1)
        options = Options(
            links="masked",
            record=Recording(rounds),
            measure=[masked_cases.ROUNDS],
            private_start=masked_cases.PRIVATE_START,
        )
        result = simulate(
            case.problem,
            case.algorithm,
            case.graph,
            steps=masked_cases.ROUNDS,
            stepsize=case.stepsize,
            insecure_seed=masked_cases.SEED,
            options=options,
        )
        saved = [read_tensors(four / f"{name}-{a}-final.safetensors")[0] for a in range(4)]
        assert torch.equal(torch.stack([one["x"] for one in saved]), result.final[0]), name
        transcript = join_recordings([four / f"{name}-{a}" for a in range(4)])
        assert result.transcript is not None
        assert torch.equal(transcript.messages, result.transcript.messages), name
        # A message is as long as one in float32, whatever the type.
        payload = 4 * masked_cases.DIMENSION
        assert all(payload < int(one["bytes"]) <= payload + 64 + 8 * 9 for one in saved)
        integers = (transcript.messages / STEP).round().to(torch.int32)
        for agent in range(4):
            links = (transcript.sender == agent).nonzero().flatten()
            own = set(integers[:, :, links].flatten().tolist())
            content = b"".join(
                path.read_bytes()[-4 * (len(path.read_bytes()) // 4) :]
                for path in four.glob(f"{name}-{agent}-to-*.bin")
            )
            sent = words(content)
            assert len(own) > masked_cases.DIMENSION
            # Headers and trailers hold small numbers; by chance one word in 10^5 is among them.
            assert len({word for word in own & sent if abs(word) > 1 << 16}) <= 3, name
    for agent in range(4):
        seen = json.loads((four / f"refusals-{agent}.json").read_text())
        assert "the agents disagree on the links" in seen["links"]
        assert "a sum of one message, which is the message" in seen["degree"]
        assert "'sealed'; accepted: plain, masked" in seen["word"]
        expected = "leaves the range of masked links" if agent == 1 else "lost agent 1"
        assert expected in seen["range"], seen
        assert "1000000" not in seen["range"]
