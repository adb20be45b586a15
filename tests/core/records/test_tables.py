"""Tables and summaries are made from events, and say no more than was measured."""

import pandas as pd
import pytest

from gradwire.core.records.recorder import Recorder
from gradwire.core.records.tables import COLUMNS, by_rank, epoch_table, ledger, summary, totals
from tests.pictures.samples import ROLES, parameter_server_events, parameter_server_table, unrecorded_table


def test_the_epoch_table_has_the_promised_rows_columns_and_numbers() -> None:
    table = parameter_server_table()
    expected = (
        "strategy,n_gpus,rank,role,epoch,step,samples,train_loss,test_loss,test_accuracy,epoch_s,data_s,forward_s,"
        "backward_s,compress_s,communicate_s,wait_s,update_s,bytes_sent,bytes_received,messages_sent,"
        "dropped,staleness_mean,staleness_max,codes,value_bytes,index_bytes,header_bytes,dense_bytes,"
        "replica_distance,lost_updates,hidden_communication,evaluate_bytes"
    )
    assert ",".join(table.columns) == expected
    assert list(table[["strategy", "n_gpus", "epoch", "rank", "role"]].itertuples(index=False, name=None)) == [
        ("parameter_server", 3, epoch, rank, ROLES[rank]) for epoch in (1, 2) for rank in range(3)
    ]
    server, worker = table.iloc[[3, 4]].to_dict("records")
    assert (server["communicate_s"], server["bytes_sent"], server["bytes_received"]) == (1.75, 450, 100)
    assert (server["messages_sent"], server["epoch_s"], server["step"]) == (2, 4.0, 0)
    assert (worker["forward_s"], worker["wait_s"], worker["communicate_s"]) == (0.75, 1.0, 0.5)
    assert (worker["step"], worker["samples"], worker["epoch_s"]) == (20, 70, 6.0)
    assert (worker["train_loss"], worker["test_loss"], worker["test_accuracy"]) == (1 / 6, 0.5, 0.75)


def test_what_does_not_apply_is_empty_and_what_did_not_happen_is_zero() -> None:
    table = parameter_server_table()
    server, silent = table.iloc[0], table.iloc[2]
    assert server[["samples", "forward_s", "data_s", "test_accuracy"]].isna().all()
    assert silent[["bytes_sent", "bytes_received", "messages_sent"]].tolist() == [0, 0, 0]
    assert pd.isna(silent["communicate_s"])
    unrecorded = unrecorded_table()
    assert unrecorded["epoch_s"].tolist() == [2.0]
    assert unrecorded[["bytes_sent", "bytes_received", "messages_sent", "forward_s"]].isna().all(axis=None)
    no_epoch = epoch_table(Recorder().frame(), "ring", 1, ["worker"])
    assert (len(no_epoch), list(no_epoch.columns)) == (0, list(COLUMNS))
    assert totals(no_epoch) == {
        "test_accuracy": None, "seconds": 0.0, "samples_per_s": None, "bytes_sent": None, "evaluate_bytes": None,
    }  # fmt: skip


def test_ledger_counts_what_was_sent() -> None:
    expected = [(0, 1, 2, 800), (0, 2, 2, 100), (1, 0, 2, 200)]
    pairs = ledger(parameter_server_events())
    assert list(pairs.columns) == ["src", "dst", "messages", "bytes"]
    assert list(pairs.itertuples(index=False, name=None)) == expected


@pytest.mark.parametrize(("epochs", "seconds", "rate"), [(1, 6.0, 140 / 6), (2, 13.0, 140 / 7)])
def test_totals_leave_the_first_of_several_epochs_out_of_the_rate(epochs: int, seconds: float, rate: float) -> None:
    assert totals(parameter_server_table(epochs)) == {
        "test_accuracy": 0.75, "seconds": seconds, "samples_per_s": pytest.approx(rate), "bytes_sent": 550 * epochs,
        "evaluate_bytes": 0,
    }  # fmt: skip


GOLDEN = """strategy parameter_server, n_gpus 3
test accuracy  0.7500
seconds        13.00
samples/s      20.0 without the first epoch
MB sent        9.6 in total; by rank 0: 8.0, 1: 0.8, 2: 0.8
MB a step      0.24 sent; dense would be 0.4; codes: values 0.03, indices 0.008, headers 0.002
time per rank  server (s, %)  worker (s, %)
forward             -      -    1.50   12.5
communicate      3.50   43.8    0.50    4.2
wait                -      -    3.00   25.0"""


def test_the_summary_shows_the_numbers_and_what_a_step_would_send_without_a_codec() -> None:
    """Two workers make 20 codes each, and the server sends 100 bytes for each of them."""
    table = parameter_server_table()
    assert "MB a step" not in summary(table, {})
    table["bytes_sent"] = [4_000_000, 400_000, 400_000] * 2
    for name, value in {"codes": 20, "value_bytes": 300_000, "index_bytes": 80_000, "header_bytes": 20_000}.items():
        table[name] = [pd.NA, value, value] * 2
    table["dense_bytes"] = [pd.NA, 2_000_000, 2_000_000] * 2
    assert summary(table, {"strategy": "parameter_server", "n_gpus": 3}).rstrip() == GOLDEN


def test_the_summary_is_short() -> None:
    assert "time per rank  not recorded" in summary(unrecorded_table(), {})
    ranks = pd.concat([parameter_server_table().assign(rank=rank, bytes_sent=10**9) for rank in range(16)])
    lines = summary(ranks, {"note": "long " * 50}).splitlines()
    assert len(lines) <= 14
    assert max(map(len, lines)) <= 100
    assert by_rank({rank: 5.0 + rank for rank in range(1000)}) == "0: 5.0, others: 6.0 to 1004.0"
    assert by_rank(dict.fromkeys(range(100), float("nan"))) == "0: -, others: - to -"
