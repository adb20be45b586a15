"""The backend "gradwire" of torch.distributed: torch finds it by the entry point, or when `gradwire` is imported."""

from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch.distributed as dist

NAME = "gradwire"


def register() -> None:
    """Let `init_process_group("gradwire")` and `new_group(backend="gradwire")` make groups; loads only torch."""
    import torch.distributed as dist

    if dist.is_available() and NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, make_group, devices=["cpu"])


def make_group(store: "dist.Store", rank: int, size: int, timeout: timedelta) -> "dist.ProcessGroup":
    """Return this rank's part of a new group, when all its members call this. Raises RunFailed, UsageError."""
    from gradwire.backend.real_group import RealGroup

    return RealGroup(store, rank, size, timeout)
