"""Several vectors as one, to be sent as one."""

import torch

from gradwire.core.records.errors import RunFailed


def pack(*parts: torch.Tensor) -> torch.Tensor:
    """Return the bytes of several vectors as one, those of the longest elements first, so that all can be read there.

    A single vector stays as it is.
    """
    if len(parts) == 1:
        return parts[0]
    ordered = sorted(parts, key=lambda part: -part.element_size())
    return torch.cat([part.contiguous().view(torch.uint8) for part in ordered])


def unpack(data: torch.Tensor, *kinds: tuple[int, torch.dtype]) -> list[torch.Tensor]:
    """Return the vectors that were packed, given the length and dtype of each. Raises RunFailed if they do not fit."""
    expected = sum(n * dtype.itemsize for n, dtype in kinds)
    if data.nbytes != expected or any(n < 0 for n, _ in kinds):
        raise RunFailed(f"a code of {data.nbytes} bytes came where {expected} were expected: sent by another codec")
    order = sorted(range(len(kinds)), key=lambda i: -kinds[i][1].itemsize)
    pieces = data.view(torch.uint8).split([kinds[i][0] * kinds[i][1].itemsize for i in order])
    return [pieces[order.index(i)].view(dtype) for i, (_, dtype) in enumerate(kinds)]
