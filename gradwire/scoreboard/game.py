"""The game of the scoreboard: a GPT on text, trained by eight ranks in virtual time.

The cost of a run is counted here, not by the entry: its clock and the bytes that have passed the network's cards are
noted when rank 0 has the final parameters.
"""

import dataclasses
import functools
import shlex
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from gradwire.command_line import parse_run
from gradwire.core.records.errors import RunFailed, UsageError, one_line
from gradwire.core.training.evaluation import evaluate
from gradwire.core.training.run import run
from gradwire.core.workloads import tasks
from gradwire.core.workloads.data import Data
from gradwire.core.workloads.loading import batches_of_test
from gradwire.language.gpt import GPT
from gradwire.language.task import LANGUAGE_MODEL
from gradwire.language.text import load_text
from gradwire.options import Options, option_names
from gradwire.pictures import page
from gradwire.pictures.finished import load
from gradwire.scoreboard.clusters import CLUSTERS, COMPUTE, RANKS
from gradwire.scoreboard.entry import Entry, ScoredTransport
from gradwire.virtual_time.cluster import ClusterOptions, Compute
from gradwire.virtual_time.launcher import VirtualTime

BATCH, CONTEXT = 8, 32
SIZE = {"layers": 1, "width": 32, "heads": 2}
MAY_SET = (
    "lr", "momentum", "weight_decay", "decay", "optimizer", "optimizer_options", "codec", "codec_scope", "lr_schedule",
    "warmup", "clip_norm",
)  # fmt: skip
"""The options of every run that an entry may set, beside those of its strategy and its codec."""
MOST_BESIDE = 0.02
"""The share of the bytes that the tags of all messages, and eight bytes for the number beside each, may be."""
_PAGE_STEPS = 1, 2
_FULL, _AIM, _MOST_TRIES = 0.98, 0.99, 12  # of a budget


@dataclass(frozen=True)
class Played:
    """The result of a run: its final parameters, virtual seconds, bytes sent; and its page, if requested."""

    parameters: dict[str, Tensor]
    seconds: float
    nbytes: int
    page: str = ""


@functools.cache
def whole() -> Data:
    """Return the text with the held-out part, which a training process must not have."""
    return load_text("text", Path(), CONTEXT)


@functools.cache
def text() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the training text, and in place of the held-out text its first two windows once more."""
    data = load_text("text", Path(), CONTEXT)
    x, y = data.train.raw(torch.arange(data.n_train), 0)
    return x, y, x[:2], y[:2]


def gpt(input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
    """Return the model, whose passes are counted."""
    model = GPT(input_shape, n_classes, **SIZE)
    if _meter:
        model.register_forward_pre_hook(_meter.note)
    return model


@dataclass
class Meter:
    """The cost of a run: the forward passes that are computed, and those that took time; its end; its bytes."""

    phases: Compute
    limit: float  # virtual seconds
    time: VirtualTime = field(init=False)
    computed: int = 0
    charged: float = 0.0
    played: Played | None = None

    def __call__(self, rank: int, phase: str, part: float) -> float:
        """Return the seconds of a phase of one step, `part` of it being done. Raises RunFailed after the limit."""
        self.charged += part * (phase == "forward")
        if self.time.now() > self.limit:
            raise RunFailed(f"has not ended after {self.limit:g} virtual s")
        return self.phases(rank, phase, part)

    def note(self, model: nn.Module, _: object) -> None:
        """Count a pass of the training; in the evaluation, which comes last, note the result of the run."""
        ranks = self.time.ranks
        if model.training:
            self.computed += 1
        elif ranks is not None and ranks.transports:
            parameters = {name: tensor.clone() for name, tensor in model.state_dict().items()}
            nbytes = round(sum(card.nbytes for card in self.time.network.sends))
            self.played = Played(parameters, ranks.transports[0].now(), nbytes)


_meter: Meter | None = None


def play(entry: Entry, place: str, seed: int, steps: int, limit: float, show: bool = False) -> Played:
    """Train on one cluster for `steps` steps of all workers; fail after `limit` virtual seconds.

    `show`: make the page of the first steps. Raises UsageError, RunFailed.
    """
    global _meter
    entry.load()
    cluster, options = CLUSTERS[place], options_of(entry.name, entry.options.get(place, ""), place)
    machines = ClusterOptions(compute=f"{COMPUTE}s", racks=cluster.racks, rack_bandwidth=cluster.rack_bandwidth)
    with tempfile.TemporaryDirectory() as folder:
        options = dataclasses.replace(
            options, seed=seed, train_size=steps * BATCH * options.roles.count("worker"), results_dir=folder,
            run_name=f"{entry.name}-{place}".replace(":", "."), events=show,
        )  # fmt: skip
        phases = machines.given_seconds(dict)
        assert phases is not None
        _meter = meter = Meter(Compute(options, phases), limit)
        meter.time = time = VirtualTime(machines.make_network(options), meter, member=ScoredTransport)
        launcher = dataclasses.replace(time.launcher(), launch=lambda job: time.run(entry.for_each(job)))
        try:
            run(options, quiet=True, launcher=launcher)
        except (RunFailed, SystemExit) as error:
            says = error if isinstance(error, RunFailed) else one_line(error)
            raise RunFailed(f"{entry.name}, {place}, seed {seed}: {says}") from error
        finally:
            _meter = None
        if meter.computed > round(meter.charged):
            raise RunFailed(
                f"{entry.name}, {place}: computed {meter.computed} forward passes, of which {round(meter.charged)} "
                "took time; compute only in those of the training loop"
            )
        assert meter.played is not None
        assert time.ranks is not None
        beside = sum(
            transport.beside for transport in time.ranks.transports.values() if isinstance(transport, ScoredTransport)
        )
        if beside > MOST_BESIDE * meter.played.nbytes:
            raise RunFailed(
                f"{entry.name}, {place}: sends {beside} bytes of tags and numbers beside {meter.played.nbytes} of "
                f"vectors, more than {MOST_BESIDE:.0%}; send vectors"
            )
        made = page.make_page([load(f"{folder}/{options.run_name}")], _PAGE_STEPS) if show else ""
        return dataclasses.replace(meter.played, page=made)


@functools.cache
def options_of(name: str, text: str, place: str) -> Options:
    """Return the options of the runs of an entry on a cluster. Raises UsageError, RunFailed."""
    cluster = CLUSTERS[place]
    fixed = {
        "strategy": name, "n_gpus": RANKS, "batch_size": BATCH, "epochs": 1, "dataset": f"{__name__}:text",
        "model": f"{__name__}:gpt", "task": LANGUAGE_MODEL, "device": "cpu", "bandwidth": cluster.bandwidth,
        "latency": cluster.latency,
    }  # fmt: skip
    try:
        given = shlex.split(text)
        names = {part.partition("=")[0].lstrip("-").replace("-", "_").removeprefix("no_") for part in given}
        for option in sorted(names & {*option_names(), "help", "h", "list"} - {*MAY_SET}):
            raise UsageError(f"--{option} is not for an entry to set; that are {', '.join(MAY_SET)} and its own")
        if ":" in text:
            raise UsageError(f"{text}: names yourmodule:something; take an optimizer, codec or schedule that is here")
        options = parse_run([*given, *(f"--{option}={value}" for option, value in fixed.items())], None, "")
    except ValueError as error:
        raise UsageError(f"{name}, options on {place}: {error}") from error
    roles = options.strategy.roles(RANKS)
    if len(roles) != RANKS or options.strategy.count_workers(RANKS) != roles.count("worker"):
        raise RunFailed(
            f"{name}: has the roles {', '.join(roles)}; make it {RANKS}, and cut a batch into as many workers"
        )
    return options


def fit(entry: Entry, place: str, budget: float) -> int:
    """Return how many steps end within a budget: they take 98 % of it, or one more does not. Raises RunFailed."""
    fits, too_many = 0, round(budget / COMPUTE) + 1
    steps = min(20, too_many - 1)
    for _ in range(_MOST_TRIES):
        try:
            seconds = play(entry, place, 0, steps, 2 * budget).seconds
        except RunFailed as error:
            if "has not ended" not in str(error):
                raise
            seconds = 2 * budget
        fits, too_many = (steps, too_many) if seconds <= budget else (fits, steps)
        if too_many - fits == 1 or _FULL * budget <= seconds <= budget:
            break
        steps = min(max(int(steps * _AIM * budget / seconds), fits + 1), too_many - 1)
    if not fits:
        raise RunFailed(f"{entry.name}, {place}: one step does not end within {budget:g} virtual s")
    return fits


def score(parameters: dict[str, Tensor]) -> float:
    """Return the bits per character of a new model with these parameters on the held-out text."""
    data, task = whole(), tasks.find(LANGUAGE_MODEL)
    model = GPT(data.input_shape, data.n_classes, **SIZE)
    model.load_state_dict(parameters)
    return evaluate(task, model, batches_of_test(data, torch.device("cpu"), torch.float32)).scores["bits_per_character"]
