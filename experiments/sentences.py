"""What was measured, as sentences with their numbers, for the notebooks: no text can then be of other runs."""

import pandas as pd

from experiments import cases
from experiments.cases import Setup, weak
from experiments.draw_comparisons import TARGET
from experiments.drawing import NAMES, title_of
from experiments.measured import Results, Servers, first_try_of, pick, ratio_to, seconds_to, spread


def bullets(*sentences: str) -> str:
    """Return sentences as a Markdown list."""
    return "\n".join(f"- {sentence}" for sentence in sentences)


def _runs(results: Results, setup: Setup, column: str, digits: int, scale: float = 1.0) -> str:
    return spread(pick(results.runs, setup)[column], digits, scale)


def _phase(results: Results, setup: Setup, role: str, *phases: str) -> float:
    """Return the seconds of an epoch that the ranks of a role spend in some phases together."""
    rows = pick(results.phases, setup)
    rows = rows[rows["role"] == role]
    return float(rows[[f"{phase}_s" for phase in phases]].fillna(0.0).sum(axis=1).mean())


def _both(results: Results, pair: list[Setup], column: str, digits: int, unit: str, scale: float = 1.0) -> str:
    return ", ".join(f"{title_of(setup)} {_runs(results, setup, column, digits, scale)} {unit}" for setup in pair)


def _speed(results: Results, ours: Setup, peer: Setup) -> str:
    return f"{spread(ratio_to(results, ours, peer), 2)} times the samples/s of the built-in"


def param_server(results: Results) -> str:
    """Return what the first notebook found."""
    cnn, mlp = cases.SERVER["cnn"], cases.SERVER["mlp"]
    one, two = cases.SERVERS[:2]
    computing = (("forward", "backward"), ("wait",), ("communicate",))
    work = [_phase(results, mlp[0], "worker", *phases) for phases in computing]
    alone = _phase(results, mlp[1], "worker", "forward", "backward")
    return bullets(
        f"**Accuracy.** CNN: {_both(results, cnn, 'accuracy', 2, '%', 100)}. "
        f"MLP: {_both(results, mlp, 'accuracy', 2, '%', 100)}.",
        f"**Seconds per epoch.** CNN: {_both(results, cnn, 'epoch_s', 2, 's')}, {_speed(results, *cnn)}. "
        f"MLP: {_both(results, mlp, 'epoch_s', 2, 's')}, {_speed(results, *mlp)}.",
        f"**A worker's epoch with the MLP.** Forward and backward passes take {work[0]:.1f} s, waiting {work[1]:.1f} "
        f"s, communicating {work[2]:.1f} s; DataParallel's one process computes for {alone:.1f} s. The server "
        f"waits for {_phase(results, mlp[0], 'server', 'wait'):.1f} s and updates for "
        f"{_phase(results, mlp[0], 'server', 'update'):.1f} s.",
        f"**One worker.** A server with one worker takes {_runs(results, one, 'epoch_s', 2)} s an epoch (CNN), with "
        f"two workers {_runs(results, two, 'epoch_s', 2)} s.",
        f"**Bytes.** With the MLP server and workers send {_runs(results, mlp[0], 'mb_per_step', 1)} MB a step in all.",
    )


def first_try(results: Results) -> str:
    """Return how a server and a ring of 8 ranks compare in shared memory."""
    pair = first_try_of(results)
    sent = [pick(results.ranks, setup).groupby("rank")["mb_sent"].mean().max() for setup in pair]
    seconds = [float(pick(results.runs, setup)["epoch_s"].mean()) for setup in pair]
    faster = "faster" if seconds[0] < seconds[1] else "slower"
    return (
        f"An epoch takes {_both(results, pair, 'epoch_s', 2, 's')}: the server is {faster} here, by a factor of "
        f"{max(seconds) / min(seconds):.2f}. Its rank 0 sends {sent[0]:.0f} MB a step, a rank of the ring "
        f"{sent[1]:.0f} MB: {sent[0] / sent[1]:.1f} times as much goes out of one rank."
    )


def ring_all_reduce(results: Results) -> str:
    """Return what the second notebook found."""
    two, four, mlp = cases.RING["cnn"][:2], cases.RING["cnn"][2:], cases.RING["mlp"]
    ring, ddp = mlp
    ours = _phase(results, ring, "worker", "backward", "communicate", "wait")
    naive = cases.TRAFFIC[1]
    return bullets(
        f"**Accuracy.** CNN, 2 ranks: {_both(results, two, 'accuracy', 2, '%', 100)}; 4 ranks: "
        f"{_both(results, four, 'accuracy', 2, '%', 100)}. MLP: {_both(results, mlp, 'accuracy', 2, '%', 100)}.",
        f"**Speed.** The ring reaches, with the CNN on 2 ranks, {_speed(results, *two)}; on 4 ranks "
        f"{spread(ratio_to(results, *four), 2)} times; with the MLP {spread(ratio_to(results, *mlp), 2)} times.",
        f"**An epoch of the MLP.** DDP's backward pass, with the exchange inside, takes "
        f"{_phase(results, ddp, 'worker', 'backward'):.1f} s, the ring's backward pass, exchange and waits together "
        f"{ours:.1f} s; forward passes {_phase(results, ddp, 'worker', 'forward'):.1f} and "
        f"{_phase(results, ring, 'worker', 'forward'):.1f} s; the ring's optimizer steps "
        f"{_phase(results, ring, 'worker', 'update'):.1f} s.",
        f"**Naive all-reduce**, 4 ranks, CNN: {_runs(results, naive, 'epoch_s', 2)} s an epoch, the ring "
        f"{_runs(results, four[0], 'epoch_s', 2)} s.",
    )


def scaling(results: Results) -> str:
    """Return what the third notebook found."""
    percent = f"{100 * TARGET:.0f} %"

    def reached(setup: Setup) -> str:
        seconds = seconds_to(results, TARGET, setup)
        missed = int(seconds.isna().sum())
        return f"{spread(seconds, 1)} s" + (f" ({missed} of {len(seconds)} runs did not reach it)" if missed else "")

    one, ring2, ring4 = Setup("single", 1), Setup("ring_all_reduce", 2), Setup("ring_all_reduce", 4)
    ddp2, ddp4 = Setup("ring_all_reduce_builtin", 2), Setup("ring_all_reduce_builtin", 4)
    none2, none4 = Setup("none", 2), Setup("none", 4)
    every = (one, ring2, none2, ddp2, ring4, none4, ddp4, Setup("param_server", 2))
    of_ring = results.runs.query("strategy == 'ring_all_reduce' and n_gpus == 2 and model == 'cnn'")
    sizes = sorted({*of_ring["train_size"]} - {0})
    by_size = [Setup("ring_all_reduce", 2, train_size=int(size)) for size in sizes] + [ring2]
    return bullets(
        f"**Seconds per epoch, strong scaling.** {_both(results, list(every), 'epoch_s', 2, 's')}.",
        f"**Time to {percent}, strong.** {'; '.join(f'{title_of(of)} {reached(of)}' for of in (one, ring2, ddp2))}.",
        "**Weak scaling on 4 ranks.** The ring's epoch takes "
        f"{_runs(results, weak('ring_all_reduce', 4), 'epoch_s', 2)} s with four times 64 samples a step, "
        f"{_runs(results, ring4, 'epoch_s', 2)} s with 128 in all. To {percent}: "
        f"{reached(weak('ring_all_reduce', 4))} against {reached(ring4)}.",
        f"**`none`** ends at {_both(results, [none2, none4], 'accuracy', 2, '%', 100)}; one process at "
        f"{_runs(results, one, 'accuracy', 2, 100)} %.",
        "**More data**, ring on 2 ranks: "
        + ", ".join(f"{int(pick(results.runs, setup)['samples'].iloc[0]):,} samples "
                    f"{_runs(results, setup, 'accuracy', 2, 100)} %" for setup in by_size) + ".",
    )  # fmt: skip


def _of(results: Servers, part: str, column: str) -> pd.Series:
    return results.runs[results.runs["part"] == part].groupby("server", sort=False)[column].mean()


def grid(results: Servers) -> str:
    """Return what the grid of learning rates found."""
    diverged = results.grid[results.grid["accuracy"].isna()].groupby("lr", sort=True)["server"].unique()
    lost = "; ".join(f"with {lr:g}: {', '.join(map(NAMES.__getitem__, servers))}" for lr, servers in diverged.items())
    chosen = ", ".join(f"{NAMES[server]} {lr:g}" for server, lr in results.rates.items())
    return bullets(
        f"**Chosen:** {chosen}.",
        f"**Diverged** {lost} (the loss became infinite, or the answer the same for all pictures)."
        if lost
        else "**No** run of the grid diverged.",
    )


def comparison(results: Servers) -> str:
    """Return how far the servers came with equal workers, and how stale their gradients were."""
    accuracy, seconds, mb = (_of(results, "final", name) for name in ("accuracy", "epoch_s", "mb"))
    stale = _of(results, "final", "stale").dropna()
    return bullets(
        f"**Accuracy** at the end: from {100 * accuracy.min():.1f} % ({NAMES[str(accuracy.idxmin())]}) to "
        f"{100 * accuracy.max():.1f} % ({NAMES[str(accuracy.idxmax())]}).",
        f"**Seconds per epoch:** from {seconds.min():.2f} ({NAMES[str(seconds.idxmin())]}) to {seconds.max():.2f} "
        f"({NAMES[str(seconds.idxmax())]}).",
        f"**MB per epoch:** Downpour {mb['downpour']:.0f}, the asynchronous server {mb['async']:.0f}.",
        f"**Mean staleness:** {', '.join(f'{NAMES[str(server)]} {value:.1f}' for server, value in stale.items())}.",
    )  # fmt: skip


def straggler(results: Servers) -> str:
    """Return what one slow worker does to each server."""
    equal, slow = _of(results, "final", "epoch_s"), _of(results, "slow", "epoch_s")
    times = "; ".join(f"{NAMES[str(server)]} {equal[server]:.1f} → {slow[server]:.1f} s" for server in slow.index)
    rows = results.ranks[results.ranks["part"] == "slow"].groupby(["server", "rank"])["share"].mean()
    late = results.staleness.query("part == 'slow' and server == 'async'")
    by_worker = late.groupby("worker").apply(lambda of: (of["staleness"] * of["count"]).sum() / of["count"].sum())
    return bullets(
        f"**Seconds per epoch,** equal workers → one slow: {times}.",
        f"**The slow worker's part of the samples:** asynchronous {100 * rows['async', 3]:.0f} %, Downpour "
        f"{100 * rows['downpour', 3]:.0f} %, with a backup worker {100 * rows['backup', 3]:.0f} %; synchronous "
        f"{100 * rows['sync', 3]:.0f} %.",
        "**Mean staleness** of the asynchronous server, by worker: "
        + ", ".join(f"{worker}: {value:.1f}" for worker, value in by_worker.items()) + ".",
    )  # fmt: skip


def backup(results: Servers) -> str:
    """Return how much longer an update takes with a slow worker, without and with a backup worker."""
    steps = results.runs.groupby(["server", "part"])["step_s"].mean()
    shared = [steps[server, "slow"] / steps[server, "final"] for server in ("sync", "backup")]
    apart = [steps[server, "apartslow"] / steps[server, "apart"] for server in ("sync", "backup")]
    dropped = _of(results, "final", "dropped")["backup"]
    return bullets(
        f"**b = 0:** an update takes {shared[0]:.2f} times as long with the slow worker on this machine's cores, "
        f"{apart[0]:.2f} times as if each worker had a device.",
        f"**b = 1:** {shared[1]:.2f} and {apart[1]:.2f} times. Without a slow worker it drops {dropped:.0f} % of the "
        "gradients.",
    )


def lost_updates(results: Servers) -> str:
    """Return what a server keeps of its clients' updates."""
    rows = results.lost.groupby(["mode", "clients"])[["made", "kept"]].sum()
    kept = 100 * rows["kept"] / rows["made"]
    return bullets(
        "**Read, modify, write back:** "
        + ", ".join(f"{n} client{'s' * (n > 1)} {value:.0f} % kept" for n, value in kept["write"].items()) + ".",
        "**Push the increment:** "
        + ", ".join(f"{n} client{'s' * (n > 1)} {value:.0f} % kept" for n, value in kept["push"].items()) + ".",
    )  # fmt: skip
