"""How much memory a device has left, and how much a computation takes."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from sottovoce.storage.memory import free_host_memory


def free_memory(device: torch.device) -> int:
    """Bytes that can still be allocated on `device`, those that torch keeps in hand included."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + kept
    return free_host_memory()


def peak_of(work: Callable[[], object], device: torch.device) -> int:
    """The most bytes that torch held on a GPU during `work`, beyond those before it."""
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    work()
    return torch.cuda.max_memory_allocated(device) - before


def saved_numbers(model: nn.Module, inputs: Tensor) -> int:
    """How many numbers a module's forward pass keeps for the backward pass, parameters left out."""
    own = {one.untyped_storage().data_ptr() for one in model.parameters()}
    found = dict[int, int]()

    def pack(kept: Tensor) -> Tensor:
        at = kept.untyped_storage().data_ptr()
        if at not in own:
            # Views share memory, and the inputs may be a view of much more.
            found[at] = max(kept.numel(), found.get(at, 0))
        held.append(kept)  # What is freed could share its address with another.
        return kept

    held = list[Tensor]()
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept):
        model(inputs)
    return sum(found.values())
