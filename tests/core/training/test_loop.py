"""The loop of one rank: what it counts, and where it says that it is."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from gradwire.core.records.events import EVALUATE
from gradwire.core.training.checks import resolve
from gradwire.results import load_events, load_table
from gradwire.virtual_time.transport import Simulated
from strategies import STRATEGIES
from tests.runs import BUILTIN, IN_MEMORY, KINDS, N_TRAIN, metadata, n_gpus_of, small, strategy_of
from tests.selection import by_default
from tests.strategies.runs import made

pytestmark = pytest.mark.xdist_group("loop")  # a run of the module is made once

EPOCHS = 2
PASSED: dict[str, list[int]] = {}
ASYNCHRONOUS = [name for name, kind in STRATEGIES.items() if kind.traits.asynchronous]
SEVERAL = (
    "single", "ring_all_reduce", "param_server", "backup_workers", "sharded_param_server", "sharded_ring", "gossip",
    "dgs", "fully_sharded", "async_param_server", "downpour", "decoupled_diloco", "hogwild", "ad_psgd",
    "param_server_builtin",
)  # fmt: skip


def ranks_of(name: str) -> int:
    return n_gpus_of(name, 4 if name == "all_reduce" else 3)  # for 3 it tries some algorithms, which is not on record


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("results")


@pytest.fixture
def results(folder: Path, name: str) -> Path:
    """The folder with a strategy's run, made once, in virtual time where it can be.

    PASSED has the bytes that each rank's transport sent.
    """
    if name in PASSED:
        return folder
    close, PASSED[name] = Simulated.close, []

    def closing(transport: Simulated) -> None:
        PASSED[name].append(transport.bytes_sent.total())
        close(transport)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Simulated, "close", closing)
        saves = {"checkpoint_every": 3, "save": str(folder / f"{name}.pt")}
        more: dict[str, Any] = {} if name in (*IN_MEMORY, *BUILTIN) else saves
        made(folder, name, strategy_of(name), n_gpus=ranks_of(name), epochs=EPOCHS, **more)
    return folder


@pytest.mark.parametrize("name", by_default(SEVERAL, KINDS))
def test_steps_and_samples_are_those_that_were_taken_and_so_are_the_steps_of_events(results: Path, name: str) -> None:
    table, events = load_table(results / f"{name}.csv"), load_events(results / name)
    last = table[table["role"] == "worker"].groupby("rank")["step"].max().clip(lower=1)  # some rank may have taken none
    training = events["value"].isna() & (events["phase"] != EVALUATE) & (events["epoch"] > 0)
    spans = events[training & events["rank"].isin(last.index)]
    begun = spans.groupby("rank")["step"].max() + 1  # an event tells how many steps are done
    assert (begun <= last).all()
    if name != "backup_workers":  # whose slowest may skip the last steps
        assert begun.to_dict() == last.to_dict()
    workers = table[table["role"] == "worker"]
    steps = resolve(small(results, name, n_gpus=ranks_of(name))).plan(N_TRAIN).n_steps
    if not KINDS[name].traits.asynchronous:
        assert workers["step"].tolist() == sorted([steps, 2 * steps] * workers["rank"].nunique())
    else:
        passes = events[events["phase"] == "forward"].groupby("rank").size()
        last = workers.groupby("rank")["step"].max()
        assert last.to_dict() == passes.reindex(last.index, fill_value=0).to_dict(), "others may have taken all"
    server = table[(table["role"] == "server") & (table["rank"] == 0)]  # of several, one counts the samples
    if len(server):
        assert server["samples"].notna().all()
        assert server[["dropped", "staleness_mean", "staleness_max"]].notna().all(axis=None)
    else:
        assert table[["dropped", "staleness_mean", "staleness_max"]].isna().all(axis=None)
    if not (KINDS[name].traits.workers_may_die or KINDS[name].traits.asynchronous):
        assert workers.groupby("epoch")["samples"].sum().tolist() == [N_TRAIN] * EPOCHS


@pytest.mark.parametrize("name", by_default(SEVERAL, ASYNCHRONOUS))
def test_an_asynchronous_epoch_ends_with_what_is_under_way(results: Path, name: str) -> None:
    """In virtual time, where it can run there: in processes, ranks of ad_psgd take steps until rank 0's word comes."""
    table = load_table(results / f"{name}.csv")
    server, workers = table[table["role"] == "server"], table[table["role"] == "worker"]
    taken = workers.groupby("epoch")["samples"].sum()
    goals = taken.index.to_series() * N_TRAIN
    # What ended the epoch, and what each worker had under way: what it was about to send, and its steps after that.
    options = metadata(results, name)["options"]
    steps = max([1, *(options[own.name] for own in dataclasses.fields(KINDS[name]) if type(own.default) is int)])
    assert taken.cumsum().between(goals, goals + 2 * 3 * 16 * steps).all()
    assert server.empty or taken.tolist() == server["samples"].tolist(), "none is lost"
    assert metadata(results, name)["replicas_identical"] or not KINDS[name].traits.agree, "all get the same x"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ring_all_reduce", [24] * 3),  # each rank has the momentum of 6 parameters of 4 bytes
        ("param_server", [24, 0, 0, 0]),
        ("sharded_ring", [8] * 3),
        ("dgs", [4 * 24, 48, 48, 48]),  # the server: w_k of each worker, a worker: u; and a vector to work in
    ],
)
def test_the_record_says_how_large_the_optimizers_state_is(results: Path, name: str, expected: list[int]) -> None:
    found = metadata(results, name)["optimizer_bytes"]
    assert found == {str(rank): nbytes for rank, nbytes in enumerate(expected)}


@pytest.mark.parametrize("name", by_default(SEVERAL, (name for name in STRATEGIES if name not in IN_MEMORY)))
def test_every_byte_that_a_transport_sends_is_on_record(results: Path, name: str) -> None:
    events = load_events(results / name)
    sent = events[events["op"] == "send"]
    assert sent["bytes"].sum() == sum(PASSED[name])
    training = events[(events["phase"] != EVALUATE) & (events["epoch"] > 0)]
    table = load_table(results / f"{name}.csv")
    for column, op in (("bytes_sent", "send"), ("bytes_received", "recv")):
        assert table[column].sum() == training.loc[training["op"] == op, "bytes"].sum(), column
    to_evaluate = sent[(sent["phase"] == EVALUATE) & (sent["epoch"] > 0)]["bytes"].sum()
    assert metadata(results, name)["evaluate_bytes"] == to_evaluate
    assert to_evaluate > 0 or len(PASSED[name]) == 1
