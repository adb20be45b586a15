"""Events of a run that never was, with numbers that can be checked by hand, and small runs in virtual time."""

import dataclasses
from pathlib import Path
from typing import Any

import pandas as pd

from gradwire import run
from gradwire.core.records.events import PHASES
from gradwire.core.records.recorder import Recorder
from gradwire.core.records.tables import epoch_table
from gradwire.pictures.finished import Recorded, load
from gradwire.virtual_time.launcher import Death, VirtualTime
from gradwire.virtual_time.network import OneSwitch
from strategies import Strategy
from tests.runs import small

WORLDS = {"ring_all_reduce": 4, "async_param_server": 3, "param_server": 3, "single": 1}

ROLES = ("server", "worker", "worker")
METADATA = {"strategy": "parameter_server", "n_gpus": 3, "replicas_identical": True, "parameter_hash": {0: "ab"}}


def parameter_server_events(epochs: int = 2) -> pd.DataFrame:
    """Rank 0 serves two workers for `epochs` epochs of 10 steps; the clock starts at 1000 s."""
    server, *workers = (Recorder(rank) for rank in range(3))
    for epoch in range(1, epochs + 1):
        for recorder in (server, *workers):
            recorder.epoch = epoch
        server.add("communicate", 1000.0, 1000.5, "recv", peer=1, tag="gradient", nbytes=100)
        server.add("communicate", 1000.5, 1001.5, "send", peer=1, tag="weights", nbytes=400)
        server.add("communicate", 1001.5, 1001.75, "send", peer=2, tag="NA", nbytes=50)
        server.mark("epoch_s", 4.0)
        for worker in workers:
            worker.step = 10 * epoch - 1
            worker.add("forward", 1000.0, 1000.25)
            worker.add("forward", 1002.0, 1002.5)
            worker.add("wait", 1003.0, 1003.0 + worker.rank)
            worker.step = 10 * epoch
            worker.mark("epoch_s", 3.0 + worker.rank + epoch)  # the slowest takes 6 s, then 7 s
            worker.mark("samples", 70)
            worker.mark("train_loss", 1 / 3 / epoch)
        workers[0].add("communicate", 1003.0, 1003.5, "send", peer=0, tag="gradient", nbytes=100)
    workers[0].mark("test_accuracy", 0.75)
    workers[0].mark("test_loss", 0.5)
    return pd.concat([recorder.frame() for recorder in (server, *workers)], ignore_index=True)


def parameter_server_table(epochs: int = 2) -> pd.DataFrame:
    return epoch_table(parameter_server_events(epochs), "parameter_server", 3, ROLES)


def unrecorded_table() -> pd.DataFrame:
    recorder = Recorder(0, enabled=False)
    recorder.epoch = 1
    recorder.add("forward", 0.0, 1.0)
    recorder.mark("epoch_s", 2.0)
    recorder.mark("samples", 10)
    return epoch_table(recorder.frame(), "single", 1, ["worker"])


def pace(rank: int, phase: str, part: float) -> float:
    """The seconds that a phase takes: each rank has its own pace, so that gradients are stale."""
    return {"forward": 1e-3, "backward": 2e-3}.get(phase, 0.0) * part * (1 + rank)


def simulated(
    folder: Path,
    strategy: Strategy | str,
    *deaths: Death,
    name: str = "run",
    n_gpus: int = 4,
    bandwidth: float = 1e7,
    latency: float = 1e-4,
    **changes: Any,
) -> None:
    """Make a run in virtual time, which is the same on every machine."""
    cluster = VirtualTime(OneSwitch(n_gpus, bandwidth, latency), pace, deaths)
    run(small(folder, strategy, run_name=name, n_gpus=n_gpus, **changes), quiet=True, launcher=cluster.launcher())


def loaded(folder: Path, name: str = "run") -> Recorded:
    """Return a run."""
    return load(str(folder / name))


def long(run: Recorded) -> Recorded:
    """Return a run of 50,000 events: this one, again and again."""
    body = run.events[run.events["phase"].isin(PHASES)]
    length, steps = body["t1"].max(), body["step"].max() + 1
    again = [body.assign(t0=body["t0"] + i * length, t1=body["t1"] + i * length, step=body["step"] + i * steps)
             for i in range(-(-50_000 // len(body)))]  # fmt: skip
    return dataclasses.replace(run, events=pd.concat(again, ignore_index=True)[:50_000])
