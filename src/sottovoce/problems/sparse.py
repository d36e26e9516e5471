"""Sparse matrices as torch keeps them, row by row, and their products with rows fetched ahead."""

import warnings

import torch
from torch import Tensor

_LONGEST = 1 << 14
"""Numbers in a row up to which rows are fetched ahead: the library writes code for each length."""


def sparse_matrix(ends: Tensor, columns: Tensor, values: Tensor, size: tuple[int, int]) -> Tensor:
    """A matrix in CSR form that shares the memory of its values.

    ends: where the entries of each row end, beginning with 0. columns: of each entry. torch says of
    the first such matrix in a process that they are in beta, which is no news to a user.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse", UserWarning)
        return torch.sparse_csr_tensor(ends, columns, values, size, check_invariants=False)


def fetches(rows: Tensor) -> bool:
    """Whether `sums` of these rows are faster than a sparse product: float32 on a CPU alone."""
    return rows.dtype == torch.float32 and not rows.is_cuda and rows.shape[-1] <= _LONGEST


def sums(rows: Tensor, ends: Tensor, columns: Tensor, values: Tensor) -> Tensor:
    """A sparse matrix times rows (n, d): a weighted sum of rows for each of its own.

    ends, columns, values: as in `sparse_matrix`. This is torch's embedding bag, whose kernel for
    float32 asks for rows some entries ahead of the one that it adds. A sparse product waits for
    each row that lies in no cache. A sum depends neither on other sums nor on threads.
    """
    found: Tensor = torch.embedding_bag(
        rows, columns, ends, mode=0, per_sample_weights=values, include_last_offset=True
    )[0]
    return found
