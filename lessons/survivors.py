"""Counts which updates are left in a server's x, in virtual time: for lab 5."""

from collections.abc import Callable
from typing import Any

import pandas as pd
import torch

from gradwire.core.transports.base import Transport
from lessons.judge import launch
from lessons.labs.lost_updates import LONGEST_S, serve
from lessons.labs.lost_updates_words import SERVER

UPDATES = 25  # of each client


def count_survivors(push: Callable[..., Any], fetch: Callable[..., Any], apply: Callable[..., Any],
                    clients: tuple[int, ...] = (1, 2, 4, 8), rounds: int = UPDATES) -> pd.DataFrame:  # fmt: skip
    """Return how many updates are in the server's x when clients fetch, add 1 to an element of their own, and push.

    Each does so `rounds` times, and waits for a random time, of up to 0.3 ms, before it pushes. Last in the table: how
    many of each client are kept. Raises RunFailed.
    """

    def be(transport: Transport) -> list[int]:
        x = torch.zeros(transport.world_size)
        if transport.rank == SERVER:
            serve(transport, x, apply)
            return [round(float(element)) for element in x[1:]]
        base, chance = x.clone(), torch.Generator().manual_seed(transport.rank)
        for _ in range(rounds):
            fetch(transport, x, base)
            transport.sleep(LONGEST_S * float(torch.rand(1, generator=chance)))
            x[transport.rank] += 1
            push(transport, x, base)
        transport.isend(None, SERVER, "goodbye")
        return []

    kept = [launch(be, k + 1)[SERVER] for k in clients]
    table = pd.DataFrame({"clients": clients, "updates": [k * rounds for k in clients], "kept": [*map(sum, kept)]})
    table["kept, %"] = (100 * table["kept"] / table["updates"]).round(1)
    table["of each client"] = [", ".join(map(str, of_each)) for of_each in kept]
    return table.set_index("clients")
