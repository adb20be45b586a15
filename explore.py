"""Run a small case in all orders of its messages: what holds in all of them, or the shortest order in which it does not.

python explore.py --strategy async_param_server --n_gpus 3 --steps 6

python explore.py --strategy hogwild --n_gpus 2 --steps 2 --own_steps

python explore.py --strategy yourmodule:YourClass --invariant yourmodule:function

python explore.py --replay RESULTS_DIR/RUN_NAME          # the order that was found, once more
"""

import sys

if __name__ == "__main__":
    from records.interrupts import end_while_loading

    end_while_loading("nothing was written")  # what follows takes seconds to load, in which Ctrl-C may come

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any

import torch
from tyro.conf import OmitArgPrefixes, arg

from every_order.cases import make_case
from every_order.report import Report, examine
from every_order.saved import load, save
from records.errors import RunFailed, UsageError
from records.known import value_of
from records.parsing import read_options
from strategies import STRATEGIES, Strategy
from training.command_line import guarded, refuse_unknown
from training.names import make_strategy
from workloads.lookup import import_user_object
