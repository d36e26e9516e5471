"""Triton code: imports Triton, so it is imported only where a kernel is launched."""
