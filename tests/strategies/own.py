"""What an option makes another strategy of, as a class of its own: then the suites of all strategies take it too."""

from dataclasses import dataclass

from strategies.local_models.ad_psgd import Exchanges
from strategies.local_models.gossip import Gossip


@dataclass(kw_only=True)
class ADPSGD(Gossip):
    """Gossip in pairs: nobody waits for the slowest, and all ranks but rank 0 may die."""

    asynchronous: bool = True  # type: ignore[misc]
    """As it is: nobody waits for the slowest."""

    workers_may_die = True
    traffic = {"worker": Exchanges.traffic}
    critical_path = None
