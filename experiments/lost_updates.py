"""Why a server's clients push increments: the updates that read-modify-write loses, measured with real processes.

Every client adds 1 to an element of its own of the server's vector x, again and again: it reads x, changes its copy,
and either writes the whole copy back, or pushes only what it has added. The sum of x at the end is the number of
updates that were not lost.
"""

from itertools import product

import pandas as pd
import torch

from gradwire import launch
from gradwire.core.records.atomic import AnyPath, write_atomically
from gradwire.core.transports.base import Transport
from gradwire.core.transports.inbox import ANY

SERVER = 0
UPDATES = 100  # of each client
CLIENTS = (1, 2, 4)
REPEATS = 5
MODES = ("write", "push")


def client(transport: Transport, mode: str) -> None:
    """Add 1 to element k - 1 of x, UPDATES times: client k."""
    x = torch.zeros(transport.world_size - 1)
    increment = torch.zeros_like(x)
    increment[transport.rank - 1] = 1
    for _ in range(UPDATES):
        transport.isend("read", SERVER, "request")
        transport.recv(SERVER, "x").copy_to(x)
        transport.isend(x + increment if mode == "write" else increment, SERVER, "request")
    transport.isend("goodbye", SERVER, "request")


def server(transport: Transport, mode: str) -> torch.Tensor:
    """Answer in the order of arrival until all clients have gone; return x."""
    x = torch.zeros(transport.world_size - 1)
    clients = set(transport.peers)
    while clients:
        with transport.recv(ANY, "request") as request:
            if request.tensor is not None:
                x.copy_(request.tensor) if mode == "write" else x.add_(request.tensor)
            elif request.object == "read":
                transport.isend(x.clone(), request.src, "x")
            else:
                clients.remove(request.src)
    return x


def _rank(transport: Transport) -> list[tuple[str, int, int]]:
    kept = []
    for repeat, mode in product(range(REPEATS), MODES):
        transport.barrier()
        if transport.rank == SERVER:
            kept.append((mode, repeat, int(server(transport, mode).sum())))
        else:
            client(transport, mode)
    return kept


def record(path: AnyPath) -> None:
    """Measure, and write a CSV: mode, clients, repeat, and how many updates were made and how many kept.

    Raises RunFailed, OSError.
    """
    rows = [(mode, n, turn, n * UPDATES, kept) for n in CLIENTS for mode, turn, kept in launch(_rank, n + 1)[SERVER]]
    with write_atomically(path) as temporary:
        pd.DataFrame(rows, columns=["mode", "clients", "repeat", "made", "kept"]).to_csv(temporary, index=False)
