"""What strategies and codecs refuse, in one line."""

import dataclasses
import re
from typing import Any

import pytest

from gradwire.core.records.errors import UsageError
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
POSITIVE, COUNT = "must be at least 1", "must be at least 0"
IN_AN_EPOCH = "must be at most 4, the steps of an epoch"
AGGREGATE: list[tuple[dict[str, Any], str]] = [
    ({"aggregate": 0}, POSITIVE),
    ({"aggregate": 13}, "must be at most 12, the gradients of an epoch"),
]
NESTEROV = {"outer_optimizer": "nesterov"}
REFUSED: dict[str, list[tuple[dict[str, Any], str]]] = {  # options, the message, which names the last of them
    "async_param_server": [*AGGREGATE, ({"max_staleness": -1}, COUNT)],
    "backup_workers": [({"n_backup": 3}, "must be fewer than the 3 workers"), ({"n_backup": -1}, COUNT)],
    "decoupled_diloco": [
        ({"local_steps": 0}, POSITIVE),
        ({"local_steps": 5}, IN_AN_EPOCH),
        ({"fragments": 0}, POSITIVE),
        ({"quorum": 0}, POSITIVE),
        ({"quorum": 4}, "must be at most 3, the learners"),
        *[({"grace": value}, "must be at least 0 and less than 1e+06") for value in (-1.0, INF, NAN)],
        *[({"outer_lr": value}, "must be at least 0") for value in (-1.0, NAN)],
        ({"outer_momentum": 1.0}, "must be at least 0 and less than 1"),
    ],
    "demo": [
        *[({name: 0}, POSITIVE) for name in ("chunk_size", "top_k")],
        *[({"momentum_decay": beta}, "must be at least 0 and less than 1") for beta in (-0.1, 1.0, NAN)],
    ],
    "des_loc": [({name: 0}, POSITIVE) for name in ("local_steps", "first_period", "second_period")],
    "downpour": [
        ({name: value}, message)
        for name in ("n_push", "n_fetch")
        for value, message in ((0, POSITIVE), (5, IN_AN_EPOCH))
    ]
    + [
        ({"momentum_every": 0}, POSITIVE),
        ({"momentum_every": 2}, "there is no momentum; give --outer_momentum too"),
        *[({"outer_lr": value}, "must be at least 0") for value in (-1.0, NAN)],
        ({"outer_momentum": 1.0}, "must be at least 0 and less than 1"),
    ],
    "easgd": [
        ({"tau": 0}, POSITIVE),
        ({"tau": 5}, IN_AN_EPOCH),
        *[({"alpha": alpha}, "must be above 0 and below 1") for alpha in (0.0, 1.0, INF, NAN)],
    ],
    "gossip": [({"topology": "star"}, "unknown; there are ring, exponential")],
    "hogwild_pp": [({"cluster_size": 0}, POSITIVE), ({"sync_delay": 0}, POSITIVE), ({"tolerance": -1.0}, COUNT)],
    "inconsistent_reads": AGGREGATE,
    "local_sgd": [
        ({"local_steps": 0}, POSITIVE),
        ({"outer_optimizer": "nestrov"}, "unknown; did you mean nesterov? "),
        *[({name: 0.5}, "averaging has none") for name in ("outer_lr", "outer_momentum")],
        *[(NESTEROV | one, "must be") for one in ({"outer_momentum": 1.0}, {"outer_lr": -1.0}, {"outer_lr": NAN})],
    ],
    "noloco": [
        ({"local_steps": 0}, POSITIVE),
        *[({name: v}, "must be") for name in ("outer_lr", "outer_momentum", "consensus_lr") for v in (-1.0, NAN)],
        ({"outer_momentum": 1.0}, "must be at least 0 and less than 1"),
    ],
    "overlapped_ring": [
        ({"bucket_mb": size}, "must be above 0 and at most 1e9, such as 25") for size in (0.0, -1.0, NAN, INF)
    ],
    "sharded_param_server": [
        ({"servers": 1}, "must be at least 2"),
        ({"servers": 4}, "must be at most 3, all processes but one"),
    ],
    "streaming_diloco": [
        ({"fragments": 0}, POSITIVE),
        ({"local_steps": 0}, POSITIVE),
        ({"delay": -1}, COUNT),
        ({"delay": 4}, "must be at most 3, one less than --local_steps"),
        *[({"eager": True, name: value}, "--eager has none") for name, value in (("delay", 0), ("blend", 0.5))],
        *[({"blend": value}, "must be at least 0 and less than 1") for value in (1.0, -0.1, NAN)],
        *[(one, "must be") for one in ({"outer_momentum": 1.0}, {"outer_lr": -1.0}, {"outer_lr": NAN})],
    ],
    "sparta": [({"fraction": part}, "must be above 0 and at most 1") for part in (0.0, -0.1, 1.1, NAN)],
}


def test_options_out_of_range_are_refused_in_one_line(kind: type[Strategy]) -> None:
    """In a run of 4 ranks and 4 steps an epoch; its defaults are not refused."""
    size = RunSize(4, kind().roles(fit(kind, 4)).count("worker"), 4)
    if fit(kind, 4) == 4:
        check_strategy(kind(), size)
    cases = [(kind(), dataclasses.replace(size, **run), message) for run, message in OF_RUNS.get(kind.name, [])]
    for options, message in REFUSED.get(kind.name, []):
        *_, (name, value) = options.items()
        cases.append((kind(**options), size, f"--{name} {value}: {message}"))
    for strategy, run, message in cases:
        with pytest.raises(UsageError, match=rf"^{re.escape(message.replace('NAME', kind.name))}.*\Z"):
            check_strategy(strategy, run)
