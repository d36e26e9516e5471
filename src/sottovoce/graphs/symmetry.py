"""The spectrum of mixing matrices that look the same from every agent, by a Fourier transform.

Rings, tori, hypercubes, complete and exponential graphs are invariant under shifts: with agents
numbered over a box, w_ij depends on the difference j - i alone, modulo the box's sides. The
discrete Fourier transform of one row over the box then gives all eigenvalues, in O(m log m).
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

_ROWS = 1 << 16
"""Agents that are compared with agent 0 at a time."""
_NEAR = 1e-15


def shift_eigenvalues(mixing: sparse.csr_array) -> NDArray[np.complex128] | None:
    """All eigenvalues, that of the constant vector first; None where no box of shifts is found.

    mixing: (agents, agents) with sorted indices.
    """
    first = slice(int(mixing.indptr[0]), int(mixing.indptr[1]))
    columns, agents = mixing.indices[first], mixing.shape[0]
    if (np.diff(mixing.indptr) != columns.size).any():
        return None
    row = np.zeros(agents)
    row[columns] = mixing.data[first]
    for box in _boxes(agents, columns):
        if _invariant(mixing, row, box):
            return np.fft.fftn(row.reshape(box)).ravel()
    return None


def _boxes(agents: int, columns: NDArray[np.integer]) -> Iterator[tuple[int, ...]]:
    """Boxes that the neighbours of agent 0 suggest: a ring, a torus, a hypercube."""
    yield (agents,)
    yield from ((agents // c, c) for c in columns.tolist() if 1 < c < agents and agents % c == 0)
    if agents.bit_count() == 1:
        yield (2,) * (agents.bit_length() - 1)


def _invariant(mixing: sparse.csr_array, row: NDArray[np.float64], box: tuple[int, ...]) -> bool:
    """Whether every row is agent 0's, shifted."""
    agents, each = mixing.shape[0], int(mixing.indptr[1])
    for top in range(0, agents, _ROWS):
        receivers = np.arange(top, min(top + _ROWS, agents))
        entries = slice(each * top, each * (top + receivers.size))
        here = np.unravel_index(receivers, box)
        there = np.unravel_index(mixing.indices[entries].reshape(-1, each), box)
        apart = [(b - a[:, None]) % side for a, b, side in zip(here, there, box, strict=True)]
        expected = row[np.ravel_multi_index(apart, box)]
        if (np.abs(expected - mixing.data[entries].reshape(-1, each)) > _NEAR).any():
            return False
    return True
