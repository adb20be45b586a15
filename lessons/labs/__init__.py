"""The labs by name. A new one is one new file here, and its line in this table."""

from lessons.lab import Lab
from lessons.labs.bubble import Bubble
from lessons.labs.columns import Columns
from lessons.labs.compression import Compression
from lessons.labs.experts import Experts
from lessons.labs.failures import Failures
from lessons.labs.links import Links
from lessons.labs.logarithms import Logarithms
from lessons.labs.lost_updates import LostUpdates
from lessons.labs.memory import Memory
from lessons.labs.not_waiting import NotWaiting
from lessons.labs.oracle import Oracle
from lessons.labs.orders import Orders
from lessons.labs.param_server import Server
from lessons.labs.ring import Ring
from lessons.labs.seldom import Seldom
from lessons.labs.sharding import Sharding

_ALL = (Server(), Ring(), Oracle(), NotWaiting(), LostUpdates(), Links(), Compression(), Sharding(), Memory(),
        Logarithms(), Orders(), Seldom(), Failures(), Bubble(), Columns(), Experts())  # fmt: skip
LABS: dict[str, Lab] = {lab.name: lab for lab in _ALL}
