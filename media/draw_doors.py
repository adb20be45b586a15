"""Draw the pictures of the four doors of README.md, from runs that it makes: media/door_*.png.

python media/draw_doors.py

The first needs Chromium and its driver (apt-get install chromium chromium-driver) and pip install -e '.[dev]'.
"""

import sys
import tempfile
from pathlib import Path

import pandas as pd
import torch
from matplotlib.figure import Figure

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from gradwire.core.transports.base import Transport
from gradwire.pictures.finished import load
from gradwire.pictures.timeline import draw, legend
from gradwire.virtual_time import simulate
from lessons.check import check

NAMES = {"param_server": "server", "ring_all_reduce": "ring", "local_sgd": "local SGD"}
COMPARED = "--device meta --model resnet50 --flops 15e12 --bandwidth 10gbit --sweep n_gpus=4,16"
SCRIPT = f"--script {HERE.parent}/benchmarks/ddp_steps.py --n_gpus 16 --bandwidth 1gbit --compute 20ms"
BAR = 0.38


def canvas() -> Figure:
    """Return a figure that is shown 410 pixels wide, half of a page."""
    return Figure((4.1, 2.7), dpi=200, layout="constrained")


def run(options: str) -> None:
    """Run simulate.py."""
    if code := simulate.main(options.split()):
        raise SystemExit(code)


def learn() -> None:
    """Save the page of a ring, as a narrow window shows it."""
    from tests.browser import chromium

    with chromium() as browser:
        browser.open(HERE / "pages" / "ring.html", width=520)
        browser.run("document.querySelector('h2').textContent = 'Four ranks sum their gradients round a ring'")
        browser.run("for (const hidden of document.querySelectorAll('.below')) hidden.remove()")
        browser.run("document.querySelector('.code').style = 'height: 116px; min-height: 0; overflow: hidden'")
        browser.frame()
        browser.run("document.querySelector('.code').scrollTop = document.querySelector('.code .now').offsetTop - 40")
        (HERE / "door_learn.png").write_bytes(browser.element("section").screenshot_as_png)


def compare(folder: str) -> Figure:
    """Draw the seconds of a step of a network with each of three strategies."""
    run(f"{COMPARED} --sweep strategy={','.join(NAMES)} --results_dir {folder}")
    (file,) = Path(folder).glob("sweep-*.csv")
    table = pd.read_csv(file)
    figure = canvas()
    axes = figure.subplots()
    for i, (ranks, rows) in enumerate(table.groupby("n_gpus")):
        rows = rows.set_index("strategy").loc[list(NAMES)]
        bars = axes.bar([k + (i - 0.5) * BAR for k in range(len(NAMES))], rows["seconds_a_step"], BAR,
                        color=("#56b4e9", "#0072b2")[i], label=f"{ranks} ranks")  # fmt: skip
        axes.bar_label(bars, fmt="%.2g s", fontsize=9)
    axes.axhline(table["compute_s"].iloc[0], color="#444444", linestyle=":", label="computing alone")
    axes.set_xticks(range(len(NAMES)), NAMES.values(), fontsize=11)
    axes.set_title("A step of ResNet-50 at 10 Gbit/s", fontsize=11)
    axes.margins(y=0.12)
    axes.set_yticks([])
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.legend(fontsize=9, frameon=False)
    return figure


def script(folder: str) -> Figure:
    """Draw two steps of a DistributedDataParallel program on 16 machines."""
    run(f"{SCRIPT} --results_dir {folder} --run_name ddp -- 16 4")
    recorded = load(f"{folder}/ddp")
    figure = canvas()
    axes = figure.subplots()
    legend(figure, draw(axes, recorded.events, recorded.roles, 3, 2))
    axes.set_yticks([0, 5, 10, 15], [f"rank {rank}" for rank in (0, 5, 10, 15)], fontsize=10)
    axes.set_title("Your DDP script on 16 machines, 1 Gbit/s", fontsize=11)
    return figure


def all_reduce(transport: Transport, vector: torch.Tensor) -> None:
    """A student's first try: rank 0 sums all vectors and sends the mean to all."""
    others = range(1, transport.world_size)
    if transport.rank:
        transport.isend(vector, 0, "up").wait()
        transport.recv(0, "down").copy_to(vector)
        return
    for rank in others:
        with transport.recv(rank, "up") as received:
            vector.add_(received.vector)
    vector.div_(transport.world_size)
    for rank in others:
        transport.isend(vector, rank, "down").wait()


def teach() -> Figure:
    """Draw what the judge of lab 2 shows of that try."""
    figure = check("ring", all_reduce).picture
    assert figure is not None
    figure.set_size_inches(4.8, 4)
    figure.suptitle("The judge draws your messages beside the best", fontsize=12)
    for axes, title in zip(
        figure.axes, ("yours: each message is a whole vector", "the ring: each message is a chunk"), strict=True
    ):
        axes.set_title(title, loc="left", fontsize=11)
        for label in list(axes.texts):
            if label.get_text().isdigit():
                label.set_fontsize(7)
            elif label.get_text():  # an arrow is a text without letters
                label.remove()  # it is in the title: at this size the labels would overlap
    figure.axes[-1].set_xlabel("virtual milliseconds")
    return figure


def main() -> None:
    """Make the four pictures."""
    learn()
    with tempfile.TemporaryDirectory() as folder:
        for name, figure in (("compare", compare(folder)), ("script", script(folder)), ("teach", teach())):
            figure.savefig(HERE / f"door_{name}.png", dpi=200)


if __name__ == "__main__":
    main()
