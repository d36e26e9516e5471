"""Settings that every test shares."""

import contextlib

import torch

# The cores belong to the test workers; threads inside each would only compete.
torch.set_num_threads(1)

with contextlib.suppress(ImportError):
    from hypothesis import settings

    # A deadline asserts a timing, and a loaded machine breaks it.
    settings.register_profile("sottovoce", deadline=None)
    settings.load_profile("sottovoce")
