"""What networks add to a run: messages are held back as on a link, and strategies plan for a graph."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import nn

from gradwire.core.launchers import Launcher
from gradwire.core.records.errors import UsageError
from gradwire.core.records.options import MAY_CHANGE_ALWAYS
from gradwire.core.strategy.settings import RunSettings
from gradwire.core.strategy.tensors import trained
from gradwire.core.training.options import Panel
from gradwire.core.training.wing import Wing
from gradwire.core.workloads.data import Data

if TYPE_CHECKING:
    from gradwire.networks.graph import Graph
    from gradwire.networks.link import Link


@dataclass(frozen=True, kw_only=True)
class LinkOptions(Panel):
    """On what the messages travel."""

    bandwidth: str | None = field(default=None, metadata=MAY_CHANGE_ALWAYS)
    """Hold messages back as on a network card of so much in each direction, headers included, which passes them in
    order: 1gbit, 100mbit, 1.5GB/s. Default: not held back; in a simulation 10gbit."""
    latency: str | None = field(default=None, metadata=MAY_CHANGE_ALWAYS)
    """Hold messages back by so much beside bytes / bandwidth: 50us, 3ms. Default: not held back; in a simulation
    50us."""
    network: str | None = None
    """A file of ranks and links (see docs/virtual_time.md): what a strategy that plans for a network plans for; in a
    simulation the network itself."""

    @property
    def link(self) -> "Link | None":
        """A new link for messages between processes; None: they are not held back. Raises UsageError."""
        if self.bandwidth is None and self.latency is None:
            return None
        from gradwire.networks.link import Link
        from gradwire.networks.units import PAYLOAD, bytes_per_second, seconds

        return Link(
            math.inf if self.bandwidth is None else PAYLOAD * read_unit("bandwidth", self.bandwidth, bytes_per_second),
            0.0 if self.latency is None else read_unit("latency", self.latency, seconds),
        )

    @property
    def graph(self) -> "Graph | None":
        """The graph of links of --network; None: it is not given. Raises UsageError."""
        if self.network is None:
            return None
        from gradwire.networks.graph import read_graph

        return read_graph(self.network)

    def settings(self) -> RunSettings:
        """Return the settings of the run that a strategy receives, with the graph."""
        return dataclasses.replace(super().settings(), network=self.graph)


def read_unit(option: str, text: str, read: Callable[[str], float]) -> float:
    """Return the value of an option with a unit: see `gradwire.networks.units`. Raises UsageError."""
    try:
        return read(text)
    except ValueError as error:
        raise UsageError(f"--{option} {text}: {error}") from None


def check_ranks(options: LinkOptions) -> None:
    """Check that --network is of as many ranks as there are. Raises UsageError."""
    if (graph := options.graph) and graph.ranks != options.n_gpus:
        raise UsageError(
            f"--n_gpus {options.n_gpus}: --network {options.network} has {graph.ranks} ranks; give as many"
        )


class Networks(Wing):
    """Links and graphs of them."""

    title = "network"
    panel = LinkOptions

    def resolve(self, options: LinkOptions, launcher: Launcher) -> LinkOptions:
        """Check that the strategy plans for the network, or that it is a simulation's; take its number of ranks."""
        strategy = options.strategy
        if options.network and launcher.processes and not getattr(strategy, "plans_for_network", False):
            table = options.choices()["strategy"].table
            able = [name for name, kind in table.items() if getattr(kind, "plans_for_network", False)]
            raise UsageError(
                f"--network: {strategy.name} does not plan for it; take --strategy {', '.join(able)}, or simulate.py"
            )
        if (graph := options.graph) and options.n_gpus is None:
            options = dataclasses.replace(options, n_gpus=launcher.world_size or graph.ranks)
        check_ranks(options)
        return options

    def check(self, options: LinkOptions, launcher: Launcher, data: Data, model: nn.Module) -> None:
        """Check that the model passes the link before a rank's wait for it times out."""
        if launcher.processes and (link := options.link):
            others = options.world_size - 1
            seconds = others * link.seconds(sum(p.nbytes for p in trained(model))) + link.latency
            if others and seconds > options.timeout:
                raise UsageError(
                    f"--timeout {options.timeout:g}: on this link the initial parameters reach the last rank after "
                    f"{seconds:.0f} s, longer than a rank waits; give a larger one, or more --bandwidth"
                )


WING = Networks()
