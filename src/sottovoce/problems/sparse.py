"""Sparse matrices as torch keeps them, row by row."""

import warnings

import torch
from torch import Tensor


def sparse_matrix(ends: Tensor, columns: Tensor, values: Tensor, size: tuple[int, int]) -> Tensor:
    """A matrix in CSR form that shares the memory of its values.

    ends: where the entries of each row end, beginning with 0. columns: of each entry. torch says of
    the first such matrix in a process that they are in beta, which is no news to a user.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse", UserWarning)
        return torch.sparse_csr_tensor(ends, columns, values, size, check_invariants=False)
