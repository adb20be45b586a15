"""What strategies and codecs refuse, in one line."""

import dataclasses
import re
from typing import Any

import pytest

from gradwire.core.records.errors import UsageError
from gradwire.core.records.options import LIMITS
from gradwire.core.strategy.run_size import check_strategy
from strategies import RunSize, Strategy
from tests.strategies.kinds import fit

INF, NAN = float("inf"), float("nan")
IN_MEMORY: list[tuple[dict[str, Any], str]] = [
    ({"shared_memory": False}, "--strategy NAME: needs shared memory; run it without torchrun, in real time"),
    ({"held_back": True}, "--bandwidth, --latency: the workers of NAME read x in shared memory"),
    ({"replayed": True}, "--replay: that run has inconsistent reads"),
]
OF_RUNS: dict[str, list[tuple[dict[str, Any], str]]] = {  # what is special of the run, the message
    "ad_psgd": [({"replayed": True}, "--replay: with NAME ranks take messages in an order of their own")],
    "fully_sharded": [
        (
            {"accumulate": 3, "last_parts": (3, 3, 2, 2)},
            "--accumulate 3: the last batch leaves a worker fewer samples than that, and with NAME all need",
        ),
    ],
    "hogwild": IN_MEMORY,
    "hogwild_pp": IN_MEMORY,
    "inconsistent_reads": IN_MEMORY,
}
IN_AN_EPOCH = "must be at most 4, the steps of an epoch"
AGGREGATE: list[tuple[dict[str, Any], str]] = [
    ({"aggregate": 0}, "must be at least 1"),
    ({"aggregate": 13}, "must be at most 12, the gradients of an epoch"),
]
REFUSED: dict[str, list[tuple[dict[str, Any], str]]] = {  # options, the message, which names the last of them
    "async_param_server": AGGREGATE,
    "backup_workers": [({"n_backup": 3}, "must be fewer than the 3 workers")],
    "decoupled_diloco": [
        ({"local_steps": 5}, IN_AN_EPOCH),
        ({"quorum": 0}, "must be at least 1"),
        ({"quorum": 4}, "must be at most 3, the learners"),
    ],
    "downpour": [
        ({"n_push": 0}, "must be at least 1"),
        ({"n_fetch": 5}, IN_AN_EPOCH),
        ({"momentum_every": 2}, "there is no momentum; give --outer_momentum too"),
    ],
    "easgd": [
        ({"tau": 5}, IN_AN_EPOCH),
        *[({"alpha": alpha}, "must be above 0 and below 1") for alpha in (0.0, 1.0, INF, NAN)],
    ],
    "inconsistent_reads": AGGREGATE,
    "local_sgd": [({name: 0.5}, "averaging has none") for name in ("outer_lr", "outer_momentum")],
    "overlapped_ring": [
        ({"bucket_mb": size}, "must be above 0 and at most 1e9, such as 25") for size in (0.0, -1.0, NAN, INF)
    ],
    "sharded_param_server": [
        ({"servers": 1}, "must be at least 2"),
        ({"servers": 4}, "must be at most 3, all processes but one"),
    ],
    "streaming_diloco": [
        ({"delay": -1}, "must be at least 0"),
        ({"delay": 4}, "must be at most 3, one less than --local_steps"),
        *[({"eager": True, name: value}, "--eager has none") for name, value in (("delay", 0), ("blend", 0.5))],
    ],
    "sparta": [({"fraction": part}, "must be above 0 and at most 1") for part in (0.0, -0.1, 1.1, NAN)],
}


def outside_of_limits(kind: type[Strategy]) -> list[tuple[dict[str, Any], str]]:
    """What the limits of its options do not allow, as each field declares them."""
    found: list[tuple[dict[str, Any], str]] = []
    for field in dataclasses.fields(kind):
        if limits := field.metadata.get(LIMITS):
            found += [({field.name: "nothing"}, "unknown")] if limits.choices else []
            found += [({field.name: limits.least - 1}, "must be at least")] if limits.least is not None else []
            found += [({field.name: limits.most + 1}, "must be at most")] if limits.most is not None else []
            below = (-1.0, limits.below, NAN) if limits.below is not None else ()
            found += [({field.name: value}, "must be at least 0 and less than") for value in below]
    return found


def test_options_out_of_range_are_refused_in_one_line(kind: type[Strategy]) -> None:
    """In a run of 4 ranks and 4 steps an epoch; its defaults are not refused."""
    size = RunSize(4, kind().roles(fit(kind, 4)).count("worker"), 4)
    if fit(kind, 4) == 4:
        check_strategy(kind(), size)
    cases = [(kind(), dataclasses.replace(size, **run), message) for run, message in OF_RUNS.get(kind.name, [])]
    for options, message in [*outside_of_limits(kind), *REFUSED.get(kind.name, [])]:
        *_, (name, value) = options.items()
        cases.append((kind(**options), size, f"--{name} {value}: {message}"))
    for strategy, run, message in cases:
        with pytest.raises(UsageError, match=rf"^{re.escape(message.replace('NAME', kind.name))}.*\Z"):
            check_strategy(strategy, run)
