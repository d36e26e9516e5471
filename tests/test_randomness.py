"""Private numbers: their distribution, their independence, and what cannot predict them."""

import hashlib
import random
import subprocess
import sys

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from scipy import stats

from sottovoce.errors import SottovoceError
from sottovoce.randomness import (
    CipherStreams,
    InsecureSeedWarning,
    RoundsAsRuns,
    Streams,
    private_streams,
    warn_about_seed,
)

SMALL, LARGE = 3, 1500
"""Numbers a round: less than a block of the cipher, and many blocks."""

KNOWN = [0.5773791091754441, 0.5916652721243076]
DTYPES = (torch.float32, torch.float64)


def seeded(runs: int | range = 2, agents: int | list[int] = 3, seed: int = 7) -> Streams:
    return private_streams(runs, agents, insecure_seed=seed)


def many(streams: Streams, count: int, dtype: torch.dtype, rounds: range) -> np.ndarray:
    drawn = [streams.uniform("test", round, count, dtype).clone() for round in rounds]
    return torch.stack(drawn).double().numpy()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [SMALL, LARGE])
def test_uniform_numbers_are_uniform(count: int, dtype: torch.dtype) -> None:
    numbers = many(seeded(), count, dtype, range(1, 1 + 30_000 // (6 * count) + 1)).ravel()
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert stats.kstest(numbers, "uniform").pvalue > 1e-3


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [SMALL, LARGE])
def test_normal_numbers_are_normal(count: int, dtype: torch.dtype) -> None:
    streams = seeded()
    rounds = range(1, 1 + 30_000 // (6 * count) + 1)
    drawn = [streams.normal("test", k, count, dtype) for k in rounds]
    numbers = torch.stack(drawn).double().numpy().ravel()
    assert np.isfinite(numbers).all()
    assert stats.kstest(numbers, "norm").pvalue > 1e-3


@pytest.mark.parametrize("count", [SMALL, LARGE])
def test_streams_do_not_follow_from_each_other(count: int) -> None:
    """Agents, runs, purposes and neighbouring rounds are uncorrelated, to four deviations."""
    streams = seeded(runs=2, agents=3)
    rounds = range(1, 1 + 9000 // count)
    by_stream = many(streams, count, torch.float64, rounds).transpose(1, 2, 0, 3).reshape(6, -1)
    other = torch.stack([streams.uniform("other", k, count).clone() for k in rounds])[:, 0, 0]
    rows = np.concatenate([by_stream, other.reshape(1, -1).numpy()])
    size = rows.shape[1]
    apart = np.corrcoef(rows) - np.eye(7)
    assert np.abs(apart).max() < 4 / np.sqrt(size)
    consecutive = np.corrcoef(rows[0, :-count], rows[0, count:])[0, 1]
    assert abs(consecutive) < 4 / np.sqrt(size)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, SMALL, 300, LARGE])
def test_numbers_are_addressed_not_consumed(count: int, dtype: torch.dtype) -> None:
    rounds = [1, 2, 500, 3, 2000, 1]
    plain = {k: seeded().uniform("test", k, count, dtype).clone() for k in rounds}
    busy = seeded()
    for k in rounds:
        busy.uniform("other", k, 2)
        busy.normal("test", k + 1, count, dtype)
        assert torch.equal(busy.uniform("test", k, count, dtype), plain[k])


@pytest.mark.parametrize("count", [SMALL, LARGE])
def test_numbers_do_not_depend_on_the_other_agents_and_runs(count: int) -> None:
    whole = seeded(runs=6, agents=4).uniform("test", 11, count).clone()
    chunks = [seeded(runs=chunk).uniform("test", 11, count) for chunk in (range(4), range(4, 6))]
    assert torch.equal(torch.cat(chunks), whole[:, :3])
    alone = seeded(runs=range(2, 3), agents=[3]).uniform("test", 11, count)
    assert torch.equal(alone[0, 0], whole[2, 3])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 5, 33, 100, 512, 513, LARGE])
def test_numbers_do_not_depend_on_how_many_are_encrypted_at_once(
    count: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = seeded().uniform("test", 9, count, dtype)
    for size in (1, 64, 4096):
        monkeypatch.setattr("sottovoce.randomness.cipher._BLOCK_BYTES", size)
        assert torch.equal(seeded().uniform("test", 9, count, dtype), expected)


def test_rounds_do_not_repeat_numbers() -> None:
    """No number of 400 rounds occurs twice, within a chunk of rounds or across chunks."""
    for count in (1, 5, 33, 100):
        numbers = many(seeded(runs=1, agents=1), count, torch.float64, range(1, 401)).ravel()
        assert len(np.unique(numbers)) == numbers.size


@pytest.mark.parametrize("count", [5, LARGE])
def test_numbers_equal_an_independent_computation_with_the_cipher(count: int) -> None:
    key = _blake(32, (_blake(32, (7,)), "test", count, torch.float64))
    counter = b"".join(part.to_bytes(4, "big") for part in (230, 1, 2, 0))
    stream = Cipher(AES256(key), CTR(counter)).encryptor().update(bytes(8 * count))
    expected = (np.frombuffer(stream, "<u8") & ((1 << 52) - 1)).astype(np.float64) / 2**52
    found = seeded(runs=2, agents=3).uniform("test", 230, count)[1, 2]
    assert found.tolist() == expected.tolist()


def _blake(size: int, parts: tuple[object, ...]) -> bytes:
    return hashlib.blake2b(repr(parts).encode(), digest_size=size, person=b"sottovoce").digest()


def test_known_answer_of_one_seed() -> None:
    """What a published study with `insecure_seed=0` drew must be drawn by every later version."""
    found = private_streams(1, 1, insecure_seed=0).uniform("stepsize", 1, 2).flatten().tolist()
    assert found == KNOWN


def test_keystreams_of_purposes_counts_and_types_differ() -> None:
    streams = seeded(runs=1, agents=1)
    addresses = [
        (purpose, count, dtype)
        for purpose in ("data", "stepsize", "mixing")
        for count in (8, 16, 600)
        for dtype in DTYPES
    ]
    first = [
        streams.uniform(purpose, 1, count, dtype).flatten()[:8].float().tolist()
        for purpose, count, dtype in addresses
    ]
    numbers = [number for row in first for number in row]
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("count", [SMALL, LARGE])
def test_global_seeds_change_nothing_and_are_not_advanced(count: int) -> None:
    expected = seeded().uniform("test", 5, count).clone()
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    streams = seeded()
    found = streams.uniform("test", 5, count)
    streams.normal("test", 5, count)
    streams.scale_(torch.ones(2, 3, count), 0.0, 1.0, "test", 6)
    private_streams(1, 2).uniform("test", 1, count)
    assert torch.equal(found, expected)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()
    assert random.getstate() == before[2]


def test_without_a_seed_nothing_repeats() -> None:
    first, second = (private_streams(2, 2).uniform("test", 1, 4).clone() for _ in range(2))
    assert not torch.isin(first, second).any()
    torch.manual_seed(0)
    third = private_streams(2, 2).uniform("test", 1, 4).clone()
    torch.manual_seed(0)
    assert not torch.isin(third, private_streams(2, 2).uniform("test", 1, 4)).any()


def test_seeds_give_different_numbers() -> None:
    assert not torch.isin(
        seeded(seed=1).uniform("test", 1, 50), seeded(seed=2).uniform("test", 1, 50)
    ).any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [SMALL, LARGE])
def test_scaling_multiplies_by_uniform_numbers_of_the_interval(
    count: int, dtype: torch.dtype
) -> None:
    given = torch.full((2, 3, count), 3.0, dtype=dtype)
    seeded().scale_(given, 0.25, 0.75, "test", 4)
    expected = 3 * (0.25 + 0.5 * seeded().uniform("test", 4, count, dtype))
    assert torch.allclose(given, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [SMALL, LARGE])
def test_noise_adds_normal_numbers_of_the_deviation(count: int, dtype: torch.dtype) -> None:
    given = torch.full((2, 3, count), 10.0, dtype=dtype)
    seeded().add_normal_(given, 2.0, "test", 4)
    expected = 10 + 2 * seeded().normal("test", 4, count, dtype)
    assert torch.allclose(given, expected, rtol=1e-6, atol=0)


def test_blocks_of_rows_equal_one_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = seeded(runs=3).uniform("test", 1, LARGE).clone()
    monkeypatch.setattr("sottovoce.randomness.cipher._BLOCK_BYTES", 4 * LARGE * 8)
    given = torch.ones(3, 3, LARGE, dtype=torch.float64)
    seeded(runs=3).scale_(given, 0.0, 1.0, "test", 1)
    assert torch.equal(given, expected)


def test_integers_are_in_range_and_unbiased() -> None:
    streams = seeded(runs=10, agents=2)
    high = torch.tensor([[3], [7]])
    drawn = torch.stack([streams.integers("data", k, 50, high) for k in range(1, 41)])
    for agent, largest in enumerate((3, 7)):
        counts = torch.bincount(drawn[:, :, agent].flatten())
        assert len(counts) == largest
        assert stats.chisquare(counts.numpy()).pvalue > 1e-3


def test_seeds_that_are_no_whole_numbers_are_refused() -> None:
    for seed in ("7", 1.5, b"key"):
        with pytest.raises(SottovoceError, match=r"insecure_seed is .*; accepted: a whole number"):
            private_streams(1, 1, insecure_seed=seed)  # type: ignore[arg-type]


def test_other_types_are_refused() -> None:
    with pytest.raises(SottovoceError, match=r"float32 or float64, not torch\.float16"):
        seeded().uniform("test", 1, 2, torch.float16)


def test_keys_stay_out_of_the_representation() -> None:
    streams = private_streams(2, 2)
    assert isinstance(streams, CipherStreams)
    shown = repr(streams) + str(streams)
    assert shown.count("CipherStreams(runs=2, agents=2)") == 2
    assert repr(streams._master) not in shown
    assert streams._master.hex() not in shown


def test_a_seed_is_warned_about() -> None:
    with pytest.warns(InsecureSeedWarning, match="every private number predictable"):
        warn_about_seed()


def test_another_process_agrees_only_where_there_is_a_seed() -> None:
    code = (
        "from sottovoce.randomness import private_streams as p;"
        "print(p(1, 1).uniform('t', 1, 1).item());"
        "print(p(1, 1, insecure_seed=3).uniform('t', 1, 1).item())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    private, repeated = map(float, done.stdout.split())
    assert repeated == private_streams(1, 1, insecure_seed=3).uniform("t", 1, 1).item()
    assert private != private_streams(1, 1).uniform("t", 1, 1).item()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, SMALL, 784, LARGE])
def test_numbers_drawn_for_many_rounds_at_once_are_those_of_single_rounds(
    count: int, dtype: torch.dtype
) -> None:
    planned = seeded()
    # A part of streams draws nothing ahead.
    single = planned.part(slice(None), slice(None))
    for round in (1, 2, 3, 64, 65, 2):
        expected = single.uniform("test", round, count, dtype)
        assert torch.equal(planned.uniform("test", round, count, dtype), expected)
        steps = [torch.full_like(expected, 3.0) for _ in range(2)]
        for streams, step in zip((planned, single), steps, strict=True):
            streams.scale_(step, 0.1, 0.7, "test", round)
        assert torch.equal(*steps)
    together = RoundsAsRuns(planned, 3).uniform("test", 2, count, dtype)
    rounds = [single.uniform("test", round, count, dtype) for round in (2, 3, 4)]
    assert torch.equal(together, torch.cat(rounds))


def test_numbers_handed_out_may_be_altered() -> None:
    streams = seeded()
    expected = streams.uniform("test", 1, SMALL)
    streams.uniform("test", 1, SMALL).zero_()
    assert torch.equal(streams.uniform("test", 1, SMALL), expected)
