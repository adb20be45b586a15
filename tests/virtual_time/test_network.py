"""Networks of numbers: what a message takes alone, and what it shares."""

import pytest

from gradwire.networks.units import bytes_per_second, seconds
from gradwire.virtual_time.network import OneSwitch, Racks

# Units


BANDWIDTHS = {"1gbit": 125e6, "100mbit": 12.5e6, "1.5GB/s": 1.5e9, "10 Gbit/s": 1.25e9, "8kbit": 1e3, "9B/s": 9.0}
TIMES = {"50us": 50e-6, "3ms": 3e-3, "1.5s": 1.5, "0s": 0, "7ns": 7e-9}
NO_BANDWIDTHS = ["", "1", "gbit", "1 apple", "-1gbit", "0gbit", "1gb/s", "1GB", "infgbit", "1e999gbit"]
NO_TIMES = ["", "5", "us", "-1s", "1m", "nans", "1 MS"]


def test_a_bandwidth_and_a_time() -> None:
    assert {text: bytes_per_second(text) for text in BANDWIDTHS} == pytest.approx(BANDWIDTHS)
    assert {text: seconds(text) for text in TIMES} == pytest.approx(TIMES)
    for text in NO_BANDWIDTHS:
        with pytest.raises(ValueError, match="such as 1gbit"):
            bytes_per_second(text)
    for text in NO_TIMES:
        with pytest.raises(ValueError, match="such as 50us"):
            seconds(text)


@pytest.mark.parametrize("bandwidth", [0.0, -1.0, float("inf"), float("nan")])
def test_a_network_needs_a_bandwidth(bandwidth: float) -> None:
    with pytest.raises(ValueError, match="bytes a second: must be finite, and above 0"):
        OneSwitch(2, bandwidth, 0.0)


# Ways


def test_only_what_leaves_its_rack_passes_the_uplinks() -> None:
    network = Racks(7, 1e6, 0.0, racks=3, rack_bandwidth=1e6)
    racks = [network.rack(rank) for rank in range(7)]
    assert sorted(set(racks)) == [0, 1, 2]
    assert racks == sorted(racks)
    assert {racks.count(rack) for rack in range(3)} == {2, 3}
    for src in range(7):
        for dst in range(7):
            between = network.path(src, dst)[1:-1]
            here, there = racks[src], racks[dst]
            assert [card.name for card in between] == (
                [] if here == there else [f"rack {here} up", f"rack {there} down"]
            )
