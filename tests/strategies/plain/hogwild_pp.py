"""One worker is SGD; the exchange of clusters has a test of its own."""

from tests.strategies.plain.none import plain_program as plain_program

WORKERS = 1
