"""A stage: slots in shared memory, in which copies of short vectors wait until their one receiver has read them.

To copy a short vector takes less time than to wait until it has been read in place.
"""

import torch

SLOT_BYTES = 1 << 16  # a longer vector is read in place
SLOTS = 4
STAGE_BYTES = SLOTS * SLOT_BYTES
_SLOT = SLOT_BYTES // 4  # elements
_PARTS = 1000  # that are kept


class Stage:
    """The stage of a sender for one receiver, which is its buffer `number`; `free` has one bit for each free slot.

    `memory` is shared: STAGE_BYTES.
    """

    def __init__(self, number: int, memory: torch.Tensor) -> None:
        self.number, self.memory = number, memory
        self.free = (1 << SLOTS) - 1
        self._parts: dict[tuple[int, int], torch.Tensor] = {}  # by slot and length, since the same ones come each step

    def copy(self, value: torch.Tensor) -> int:
        """Copy a vector that `fits` into a free slot; return its offset, or -1: no slot is free."""
        slot = self.free & -self.free
        if not slot:
            return -1
        offset, key = (slot.bit_length() - 1) * _SLOT, (slot, value.numel())
        part = self._parts.get(key)
        if part is None:
            if len(self._parts) >= _PARTS:
                self._parts.clear()
            part = self._parts[key] = self.memory[offset : offset + value.numel()]
        part.copy_(value)
        self.free ^= slot
        return offset


def fits(value: torch.Tensor, nbytes: int) -> bool:
    """Return whether a tensor of `nbytes` bytes is a float32 vector on the CPU that fits into a slot."""
    return (
        nbytes <= SLOT_BYTES
        and value.dtype == torch.float32
        and value.dim() == 1
        and not value.requires_grad
        and not value.is_cuda
    )


def slot_at(offset: int) -> int:
    """Return the bit of the slot at this offset."""
    return 1 << offset // _SLOT
