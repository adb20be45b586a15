"""One worker is SGD: of several, time decides what is lost."""

from tests.strategies.plain.none import plain_program as plain_program

WORKERS = 1
