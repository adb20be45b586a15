"""Run a test of torch's own suite for process groups on every rank: arguments are a folder that they share and a name.

A rank that skips the test leaves the file `skipped` in the folder.
"""

import os
import sys
import time
import unittest
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.testing._internal.common_distributed import TEST_SKIPS
from torch.testing._internal.common_utils import TestCase, set_rng_seed
from torch.testing._internal.distributed import distributed_test

RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
LIMIT = timedelta(seconds=60)


class Case(distributed_test.DistributedTest._DistTestBase, TestCase):
    """A test case that has the rank and the files of its process, as torch's MultiProcessTestCase."""

    rank, world_size = RANK, str(WORLD_SIZE)
    folder = Path(sys.argv[1])
    file_name, init_method = str(folder / "store"), f"file://{folder / 'store'}"
    met = 0

    def _barrier(self, wait_for: int = WORLD_SIZE, **_: Any) -> None:
        """Wait until all ranks are here; torch's own names its files by process."""
        self.met += 1
        (self.folder / f"met-{self.met}-{RANK}").touch()
        while len(list(self.folder.glob(f"met-{self.met}-*"))) < wait_for:
            time.sleep(0.01)


def run(name: str) -> None:
    case = Case(name)
    limit = timedelta(seconds=distributed_test.CUSTOM_PG_TIMEOUT.get(name, LIMIT.total_seconds()))
    dist.init_process_group("gloo", case.init_method, limit, WORLD_SIZE, RANK)
    case._barrier()
    set_rng_seed()
    try:
        getattr(case, name)()
    except unittest.SkipTest:
        (case.folder / "skipped").touch()
    except SystemExit as error:
        if error.code not in [skip.exit_code for skip in TEST_SKIPS.values()]:
            raise
        (case.folder / "skipped").touch()
    case._barrier()
    if dist.is_initialized():
        dist.destroy_process_group()


run(sys.argv[2])
