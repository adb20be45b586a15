"""torch's own tests of process groups: the table of all, and some of them again."""

import os
import subprocess
import sys

import pandas as pd
import pytest

from tests.ranks import LIMIT
from tests.runs import ROOT
from tests.torch_scripts.distributed_test import BACKENDS, PASSED, TABLE

AGAIN = [
    "test_monitored_barrier_gloo_rank_0_timeout", "test_sparse_all_reduce_sum",
    "test_send_recv_any_source_torch_profiler",
]  # fmt: skip


def test_nearly_all_pass_that_pass_on_gloo() -> None:
    table = pd.read_csv(TABLE)
    on_gloo = table[table["gloo"] == PASSED]
    assert len(table) == 285
    assert set(on_gloo[on_gloo["virtual"] != PASSED]["test"]) == {"test_ddp_logging_data_cpu", "test_get_rank"}
    assert set(on_gloo[on_gloo["gradwire"] != PASSED]["test"]) == {"test_ddp_logging_data_cpu"}  # the backend's name


def test_some_pass_again() -> None:
    pytest.importorskip("expecttest")
    table = pd.read_csv(TABLE, index_col="test")
    assert (table.loc[AGAIN] == PASSED).all(axis=None)
    command = [sys.executable, "-m", "tests.torch_scripts.distributed_test", *AGAIN]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False, cwd=ROOT,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})  # fmt: skip
    for backend in BACKENDS:
        assert f"{backend}: {len(AGAIN)} of {len(AGAIN)} pass" in done.stdout, done.stdout + done.stderr
