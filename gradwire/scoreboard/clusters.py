"""The three clusters of the scoreboard, and the constants that all share."""

from dataclasses import dataclass

RANKS = 8  # a server is one of them
COMPUTE = 0.05  # virtual seconds of a step; nothing else that a rank computes takes time


@dataclass(frozen=True)
class Cluster:
    """A network, and how many virtual seconds a run has on it."""

    bandwidth: str
    latency: str
    budget: float
    racks: int = 1
    rack_bandwidth: str | None = None


CLUSTERS = {
    "slow": Cluster("10mbit", "50ms", 10.0),
    "fast": Cluster("1gbit", "50us", 5.0),
    "racks": Cluster("1gbit", "50us", 5.0, racks=2, rack_bandwidth="20mbit"),
}
