"""The state of a rank's random draws, to be saved and continued from."""

from collections.abc import Mapping
from typing import Any

import torch


def random_state(device: torch.device) -> dict[str, torch.Tensor | None]:
    """Return the state of this rank's torch generators, the CPU's and its GPU's, from which dropout draws."""
    on_gpu = device.type == "cuda"
    return {"random": torch.get_rng_state(), "random_cuda": torch.cuda.get_rng_state(device) if on_gpu else None}


def set_random_state(state: Mapping[str, Any], device: torch.device) -> None:
    """Continue to draw from a state with what `random_state` returned."""
    torch.set_rng_state(state["random"])
    if state["random_cuda"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(state["random_cuda"], device)
