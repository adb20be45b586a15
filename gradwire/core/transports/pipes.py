"""The pipes between ranks, and those on which their launcher reports deaths."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import permutations
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext

RETURNED = 128  # added to a rank in a notice of the launcher: not its death, but its return


@dataclass
class Endpoint:
    """One rank's ends of the pipes, made by `wire` and given to its process.

    `spares` are pipes, in and out, to ranks that will be started again, in the order of their restarts; `life` counts
    how often this rank was. Such a rank has pipes only to the ranks that let it in.
    """

    rank: int
    world_size: int
    inbound: dict[int, Connection]
    outbound: dict[int, Connection]
    deaths: Connection
    spares: list[tuple[Connection, Connection]] = field(default_factory=list)
    life: int = 0

    def close(self) -> None:
        """Close this process's copies of the pipe ends."""
        spares = (end for pair in self.spares for end in pair)
        for connection in (*self.inbound.values(), *self.outbound.values(), *spares, self.deaths):
            connection.close()


def wire(world_size: int, context: BaseContext) -> tuple[list[Endpoint], list[Connection]]:
    """Return an endpoint for each rank, and the launcher's ends of the pipes on which it reports deaths to them."""
    deaths = [context.Pipe(duplex=False) for _ in range(world_size)]
    endpoints = [Endpoint(rank, world_size, {}, {}, reader) for rank, (reader, _) in enumerate(deaths)]
    for src, dst in permutations(range(world_size), 2):
        endpoints[dst].inbound[src], endpoints[src].outbound[dst] = context.Pipe(duplex=False)
    return endpoints, [writer for _, writer in deaths]


def spare_pipes(
    endpoints: list[Endpoint], hosts: Iterable[int], context: BaseContext
) -> dict[int, tuple[Connection, Connection]]:
    """Give each of `hosts` one more spare pair of pipes; return the other ends of them, in and out, by host."""
    theirs: dict[int, tuple[Connection, Connection]] = {}
    for host in hosts:
        to_host, to_newcomer = context.Pipe(duplex=False), context.Pipe(duplex=False)
        endpoints[host].spares.append((to_host[0], to_newcomer[1]))
        theirs[host] = (to_newcomer[0], to_host[1])
    return theirs
