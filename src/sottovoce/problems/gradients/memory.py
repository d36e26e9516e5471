"""How much memory a device has left."""

import torch

from sottovoce.storage.memory import free_host_memory


def free_memory(device: torch.device) -> int:
    """Bytes that can still be allocated on `device`, those that torch keeps in hand included."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + kept
    return free_host_memory()
