"""Ranks that died and came back: which events belong to their last life, the only one whose events are kept."""

from collections.abc import Collection, Mapping
from typing import Any

import pandas as pd

POSITION = "position"  # the tag of what a server sends first to a worker that begins, or that has returned


def well_formed(deaths: object) -> bool:
    """Return whether `deaths` is a list of deaths as a run records them."""
    return isinstance(deaths, list) and all(
        isinstance(one, dict) and isinstance(one.get("rank"), int) for one in deaths
    )


def died(metadata: Mapping[str, Any]) -> set[int]:
    """Return the ranks that have died in a run, perhaps to return: what they recorded until then is lost."""
    return {death["rank"] for death in metadata.get("deaths", ())}


def lives(events: pd.DataFrame, dead: Collection[int]) -> pd.Series:
    """Return 1 for the events that belong to the last life of a rank that has died and returned, else 0.

    Where no server has welcomed it, that is only what it recorded itself: whose messages the others got is not known.
    """
    life = pd.Series(0, events.index)
    for k in dead:
        of_peer = events["peer"] == k
        welcomed = events.loc[of_peer & (events["op"] == "send") & (events["tag"] == POSITION), "t0"].max()
        life[(events["rank"] == k) | (of_peer & (events["t0"] >= welcomed))] = 1
    return life
