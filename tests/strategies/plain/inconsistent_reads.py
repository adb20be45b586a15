"""One worker: what several read while x is written cannot be told again."""

from tests.strategies.plain.async_param_server import plain_program as plain_program

WORKERS = 1
