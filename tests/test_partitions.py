"""Partitions: disjoint, complete where they should be, reproducible, and honest about refusals."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sottovoce.errors import DataError
from sottovoce.problems.data.partitions import (
    Partition,
    by_counts,
    by_shards,
    dirichlet,
    equal,
    parse_partition,
)

LABELS = torch.arange(1000) % 10
SEEDS = st.integers(0, 2**32 - 1)


@st.composite
def divisions(draw: st.DrawFn) -> tuple[Tensor, int, str]:
    """Labels, a number of agents they suffice for, and a rule that divides all of them."""
    labels = draw(st.lists(st.integers(0, 9), min_size=2, max_size=120))
    agents = draw(st.integers(1, len(labels)))
    shards = draw(st.integers(1, len(labels) // agents))
    alpha = draw(st.sampled_from([0.01, 0.5, 100.0]))
    rule = draw(st.sampled_from(["equal", f"dirichlet:{alpha}", f"shards:{shards}"]))
    return torch.tensor(labels), agents, rule


def held(partition: Partition) -> list[int]:
    return torch.cat(partition.indices).tolist()


@given(divisions(), SEEDS)
def test_every_sample_is_held_by_exactly_one_agent(
    division: tuple[Tensor, int, str], seed: int
) -> None:
    labels, agents, rule = division
    partition = parse_partition(rule)(labels, agents, seed)
    assert len(partition.indices) == agents
    assert sorted(held(partition)) == list(range(len(labels)))
    assert min(partition.sizes) >= 1
    assert all(own.dtype == torch.int64 for own in partition.indices)


@given(divisions(), SEEDS)
def test_a_seed_gives_one_partition_and_leaves_global_generators_alone(
    division: tuple[Tensor, int, str], seed: int
) -> None:
    labels, agents, rule = division
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1]
    first = parse_partition(rule)(labels, agents, seed)
    second = parse_partition(rule)(labels, agents, seed)
    assert all(map(torch.equal, first.indices, second.indices))
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)


@pytest.mark.parametrize("rule", ["equal", "dirichlet:0.5", "shards:2", "counts:300,200,100,50,50"])
def test_another_seed_gives_another_partition(rule: str) -> None:
    first, second = (parse_partition(rule)(LABELS, 5, seed) for seed in (1, 2))
    assert held(first) != held(second)


@given(divisions(), SEEDS)
def test_equal_sizes_differ_by_at_most_one(division: tuple[Tensor, int, str], seed: int) -> None:
    labels, agents, _ = division
    sizes = equal(labels, agents, seed).sizes
    assert max(sizes) - min(sizes) <= 1


@given(st.lists(st.integers(1, 30), min_size=1, max_size=30), SEEDS)
def test_counts_are_met_exactly_without_overlap(counts: list[int], seed: int) -> None:
    partition = by_counts(LABELS, counts, seed)
    assert partition.sizes == counts
    assert len(set(held(partition))) == sum(counts)


def test_small_alpha_concentrates_labels_and_large_alpha_spreads_them() -> None:
    def largest_share(alpha: float) -> float:
        table = torch.tensor(dirichlet(LABELS, 5, alpha, seed=3).table(LABELS)).double()
        return float((table.amax(0) / table.sum(0)).mean())

    assert largest_share(0.01) > 0.9
    assert largest_share(1000.0) < 0.25


def test_dirichlet_proportions_have_the_variance_of_the_law() -> None:
    # Each proportion of a symmetric Dirichlet(α) over m agents has variance (m - 1)/(m²(mα + 1)).
    labels = torch.zeros(1000, dtype=torch.int64)
    shares = np.array([dirichlet(labels, 5, 0.5, seed).sizes for seed in range(500)]) / 1000
    assert shares.var() == pytest.approx(4 / (25 * 3.5), rel=0.1)


@given(st.integers(1, 4), SEEDS)
def test_shards_bound_how_many_labels_an_agent_holds(shards: int, seed: int) -> None:
    # 1000 samples in 10 equal classes: a shard of 1000/(5·shards) >= 50 samples meets <= 3 labels.
    table = by_shards(LABELS, 5, shards, seed).table(LABELS)
    per_shard = 2 if shards in (1, 2) else 3
    assert all(sum(count > 0 for count in row) <= per_shard * shards for row in table)


def test_two_shards_of_ten_agents_are_at_most_two_labels_each() -> None:
    table = by_shards(LABELS, 10, 2, seed=0).table(LABELS)
    assert all(sum(count > 0 for count in row) <= 2 for row in table)
    assert all(sum(row) == 100 for row in table)


def test_table_counts_what_the_agents_hold() -> None:
    partition = Partition([torch.tensor([0, 1, 2]), torch.tensor([3])], "by hand")
    assert partition.table(torch.tensor([0, 0, 2, 1])) == [[2, 0, 1], [0, 1, 0]]


@pytest.mark.parametrize(
    ("rule", "agents", "message"),
    [
        ("equal", 0, "over 0 agents"),
        ("equal", 1001, "1000 samples cannot be divided over 1001 agents"),
        ("dirichlet:0", 5, "alpha is 0.0"),
        ("dirichlet:nan", 5, "alpha is nan"),
        ("dirichlet:inf", 5, "alpha is inf"),
        ("shards:0", 5, "between 1 and 200"),
        ("shards:201", 5, "between 1 and 200"),
        ("counts:1,2", 5, "2 counts for 5 agents"),
        ("counts:1,0,1", 3, "at least 1"),
        ("counts:500,501", 2, r"sum \(1001\) at most 1000"),
    ],
)
def test_impossible_divisions_are_refused(rule: str, agents: int, message: str) -> None:
    with pytest.raises(DataError, match=message):
        parse_partition(rule)(LABELS, agents, 0)


@pytest.mark.parametrize(
    "text", ["", "Equal", "equal:3", "dirichlet", "shards:x", "counts:", "iid"]
)
def test_unknown_partitions_are_refused_with_what_is_accepted(text: str) -> None:
    with pytest.raises(DataError, match="accepted are equal, dirichlet:ALPHA"):
        parse_partition(text)


@pytest.mark.parametrize("labels", [torch.zeros(10), torch.zeros(5, 2, dtype=torch.int64)])
def test_labels_must_be_a_vector_of_integers(labels: Tensor) -> None:
    with pytest.raises(DataError, match="a vector of integers"):
        equal(labels, 2, 0)
