"""The networks of links that come with the package: a ring, a torus, two racks."""

from tests.runs import ROOT

FOLDER = ROOT / "gradwire" / "networks"
