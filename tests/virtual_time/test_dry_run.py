"""Steps that are only timed: on the meta device they take what they take with elements, for models of any size."""

import re
from typing import Any

import pytest

from gradwire.compression import CODECS, Codec, Layout, RandomK, TopK
from gradwire.core.records.errors import UsageError
from gradwire.core.training.checks import resolve
from gradwire.core.transports.throttle import FAIR, IN_ORDER
from gradwire.networks.predict import predict
from gradwire.networks.units import PAYLOAD
from gradwire.options import Options
from gradwire.virtual_time.cluster import ClusterOptions, Compute
from gradwire.virtual_time.dry_run import DryRun, dry_run, evaluate_cost, period
from gradwire.virtual_time.launcher import VirtualTime
from gradwire.virtual_time.meta_models import count_flops, sizes_of
from gradwire.virtual_time.network import OneSwitch
from gradwire.virtual_time.steps import Sizes, Steps, StepsJob, take_steps
from strategies import (
    DESLOC,
    DGS,
    STRATEGIES,
    AsyncParamServer,
    BackupWorkers,
    Downpour,
    FastestAllReduce,
    FullySharded,
    NaiveAllReduce,
    OverlappedRing,
    ParamServer,
    RingAllReduce,
    ShardedGradients,
    Strategy,
    StreamingDiLoCo,
)
from tests.runs import IN_MEMORY, n_gpus_of
from tests.strategies.kinds import exact

IN_MESSAGES = {name: kind for name, kind in STRATEGIES.items() if name not in IN_MEMORY}
STEPS, SAMPLES = 12, 4
GBIT = 125e6 * PAYLOAD  # bytes a second


def options_of(strategy: Strategy, n_gpus: int, **changes: Any) -> Options:
    usual: dict[str, Any] = {"bandwidth": "1gbit", "latency": "1ms", "batch_size": SAMPLES}
    return Options(strategy=strategy, n_gpus=n_gpus, **(usual | changes))


def on(
    device: str, strategy: Strategy, n_gpus: int, sizes: Sizes, steps: int = STEPS, **changes: Any
) -> tuple[list[Steps], list[int]]:
    """Take steps in virtual time; return what each rank returned, and the bytes of its vectors."""
    options = resolve(options_of(strategy, n_gpus, device="cpu", **changes))
    time = VirtualTime(OneSwitch(n_gpus, 125e6, 1e-3), Compute(options, {"forward": 0.01, "backward": 0.02}))
    job = StepsJob(options, sizes, SAMPLES, steps)
    results = time.launch(take_steps, n_gpus, job, device=device, roles=options.roles, on_report=lambda *_: None)
    assert time.ranks is not None
    return results, [time.ranks.transports[rank].bytes_allocated for rank in range(n_gpus)]


CODED_LAYOUT = Layout(("m", "v"), ((30, 33), (13,)))
PLAIN: list[tuple[Strategy, Codec, Layout | None]] = [(kind(), CODECS["none"](), None) for kind in IN_MESSAGES.values()]
ENCODED = [
    (kind(), codec(), CODED_LAYOUT)
    for kind in (RingAllReduce, ParamServer)
    for name, codec in CODECS.items()
    if name != "none" and codec.on_meta
]


@pytest.mark.parametrize(("strategy", "codec", "layout"), [*PLAIN, *ENCODED], ids=lambda of: getattr(of, "name", ""))
def test_no_decision_depends_on_the_value_of_an_element(
    strategy: Strategy, codec: Codec, layout: Layout | None
) -> None:
    n_gpus, sizes = n_gpus_of(strategy.name, 4), Sizes(1003, 5, layout)
    changes: dict[str, Any] = {"slow": (f"{n_gpus - 1}:3",), "codec": codec}
    if not (layout or strategy.cost().code):  # a code of its own is of sgd
        changes |= {"optimizer": "adam", "clip_norm": 1.0}
    steps = 3 if layout else STEPS
    meta, cpu = (on(device, strategy, n_gpus, sizes, steps, **changes) for device in ("meta", "cpu"))
    assert meta == cpu


@pytest.mark.parametrize("kind", [ShardedGradients, FullySharded, StreamingDiLoCo])
def test_a_step_of_layers_sends_what_its_closed_form_says(kind: type[Strategy]) -> None:
    strategy, n_gpus = kind(), 4
    sizes = sizes_of(Options(), 840, 6)
    less, more = (on("meta", strategy, n_gpus, sizes, steps)[0] for steps in (STEPS, 2 * STEPS))
    messages, nbytes = evaluate_cost(resolve(options_of(strategy, n_gpus)), sizes.layout)
    for of_steps, what in ((messages, "messages"), (nbytes, "nbytes")):  # what is still on its way is so in both
        sent = [sum(getattr(result, what) for result in results) for results in (less, more)]
        assert sent[1] - sent[0] == pytest.approx(STEPS * of_steps)


def steps_of(strategy: Strategy, n_gpus: int, parameters: float, **changes: Any) -> DryRun:
    steps, layers = changes.pop("steps", None), changes.pop("layers", 1)
    cluster = ClusterOptions(compute="0.3s", sharing=changes.pop("sharing", FAIR))
    return dry_run(options_of(strategy, n_gpus, **changes), cluster, parameters, steps, quiet=True, layers=layers)


def test_a_step_of_a_model_that_fits_nowhere() -> None:
    nbytes = 4e12
    ring = steps_of(RingAllReduce(), 8, 1e12)
    assert ring.seconds == pytest.approx(0.3 + 14 * (nbytes / 8 / GBIT + 1e-3))
    half = steps_of(RingAllReduce(), 8, 1e12, dtype="bfloat16")
    assert half.seconds == pytest.approx(0.3 + 14 * (nbytes / 2 / 8 / GBIT + 1e-3))
    server = steps_of(ParamServer(), 9, 1e12)
    assert server.steps == 1, "all workers end a step together"
    assert server.seconds == pytest.approx(0.3 + 2 * 8 * nbytes / GBIT + 2e-3)
    assert {card.name for card, percent in server.cards if percent > 49} == {"rank 0 sends", "rank 0 receives"}
    server = steps_of(ParamServer(), 9, 1e12, sharing=IN_ORDER)
    assert server.steps == 41, "a worker sends while the others get their parameters, from the second step on"
    assert server.seconds == pytest.approx(0.3 + 9 * nbytes / GBIT + 2e-3)
    assert server.figures()["gb_sent_a_step"] == pytest.approx(16 * 4000)
    assert {card.name for card, percent in server.cards if percent > 80} == {"rank 0 sends", "rank 0 receives"}
    assert sum(card.nbytes for card, _ in server.cards) == pytest.approx(2 * 41 * 16 * nbytes), (
        "not of the initial parameters"
    )
    assert "rank 0" in server.text()


def test_coding_takes_what_is_said() -> None:
    options = options_of(ParamServer(), 3, latency="0s", codec=TopK())
    run = dry_run(options, ClusterOptions(compute="0.3s", coding="10ms"), 1e3, 1, quiet=True)
    assert run.seconds == pytest.approx(0.3 + 3 * 0.01, rel=1e-3), "a worker encodes, the server decodes two"
    assert run.compute == pytest.approx(0.3)


SYNCHRONOUS = {name: kind for name, kind in STRATEGIES.items() if not kind.traits.asynchronous}
CODED = [
    (name, CODECS[codec]) for name in ("param_server", "ring_all_reduce") for codec in ("topk", "random_k", "qsgd")
]
LARGE = 2 * 10**7
WALLS = ((2, FAIR, LARGE), (5, FAIR, 10**3), (5, FAIR, LARGE), (5, IN_ORDER, LARGE))  # the latency, or the bandwidth
SHORT = {"des_loc": DESLOC(local_steps=1, first_period=2, second_period=4)}  # of which a whole period is taken
BOUNDS = {
    # What buckets hide of each other's latency is not in its formula.
    **{("overlapped_ring", workers): (0.99, 1.001) for workers in (2, 5)},
    **{(name, 5): (0.7, 1.5) for name in ("recursive_doubling", "halving_doubling", "swing", "all_reduce")},  # `fold`
    ("double_tree", 5): (0.999, 1.5),  # odd
    ("noloco", 5): (0.999, 1.6),  # odd
}


@pytest.mark.parametrize(
    ("name", "codec"), [*((name, None) for name in SYNCHRONOUS), *((name, codec) for name, codec in CODED)]
)
def test_a_synchronous_step_takes_what_is_predicted(name: str, codec: type[Codec] | None) -> None:
    strategy, coding = SHORT.get(name) or exact(STRATEGIES[name]), {"codec": codec()} if codec else {}
    for workers, sharing, parameters in ((5, FAIR, 10**6),) if codec else WALLS:
        least, most = (0.98, 1.02) if codec else BOUNDS.get((name, workers), (0.999, 1.001))
        n_gpus, cost = n_gpus_of(name, workers), strategy.cost()
        if cost.path is None and not (sharing == IN_ORDER and cost.in_order):
            continue
        options = resolve(options_of(strategy, n_gpus, device="cpu", **coding))
        coded = options.coded(Layout(("x",), ((parameters,),)))
        predicted = predict(strategy, n_gpus, 4 * parameters, 0.3, GBIT, 1e-3, coded, sharing=sharing)
        if predicted is None:  # folded
            assert sharing == FAIR
            assert n_gpus & (n_gpus - 1)
            continue
        steps = period(strategy) if name in SHORT else None
        run = steps_of(strategy, n_gpus, parameters, sharing=sharing, steps=steps, **coding)
        assert least * predicted <= run.seconds <= most * predicted


@pytest.mark.parametrize(("n_gpus", "sharing"), [(2, IN_ORDER), (5, FAIR)])
@pytest.mark.parametrize("kind", [RingAllReduce, ShardedGradients, FullySharded])
def test_a_step_of_layers_takes_what_is_predicted(kind: type[Strategy], n_gpus: int, sharing: str) -> None:
    for parameters in (10**3, 10**8):
        run = steps_of(kind(), n_gpus, parameters, sharing=sharing, layers=10)
        predicted = predict(kind(), n_gpus, 4 * parameters, 0.3, GBIT, 1e-3, sharing=sharing, blocks=10)
        assert run.seconds == pytest.approx(predicted, rel=5e-3 if parameters == 1e3 else 1e-3)


def test_what_travels_while_a_layer_computes_takes_no_time() -> None:
    N, B, nbytes = 4, 10, 4e6
    chunk = nbytes / B / N / GBIT  # seconds; a layer computes for longer than it is gathered
    gathering, reducing = (N - 1) * chunk + 1e-3, (N - 1) * (chunk + 1e-3)
    run = steps_of(FullySharded(prefetch=True), N, nbytes / 4, layers=B)
    assert run.seconds == pytest.approx(0.3 + 2 * gathering + B * reducing), "the first of each pass, and all gradients"
    ring = steps_of(OverlappedRing(bucket_mb=nbytes / B / 1e6), N, nbytes / 4, layers=B)
    assert 0.3 + 2 * reducing <= ring.seconds * 1.001 <= 0.3 + 4 * reducing, "the bucket of the first layer"
    assert steps_of(OverlappedRing(bucket_mb=nbytes / B / 1e6), N, nbytes / 4).seconds > ring.seconds + 5 * reducing


def test_a_code_of_a_model_that_fits_nowhere_needs_no_memory() -> None:
    for codec in (RandomK(), TopK()):
        options = options_of(RingAllReduce(), 3, codec=codec, momentum=0.9)
        run = dry_run(options, ClusterOptions(compute="0.3s"), 1e12, quiet=True)
        assert run.memory[0] == pytest.approx(4 * 4e12, rel=0.05), "x, g, the momentum, and what the codec keeps"


@pytest.mark.parametrize(
    ("strategy", "n_gpus", "codec", "share"),
    [
        (DGS(), 3, "none", 4 * 8 * 0.01),
        (DGS(per_tensor=False), 3, "none", 4 * 8 * 0.01),
        (RingAllReduce(), 2, "powersgd", 2 * 4 * 0.00731),
    ],
)
def test_what_a_model_by_name_sends_coded_is_that_of_its_tensors(
    strategy: Strategy, n_gpus: int, codec: str, share: float
) -> None:
    pytest.importorskip("torchvision")
    options = options_of(strategy, n_gpus, model="resnet18", codec=CODECS[codec](), device="cpu")
    run = dry_run(options, ClusterOptions(compute="0.3s"), None, quiet=True)
    _, nbytes = evaluate_cost(resolve(options), run.sizes.layout)
    assert run.figures()["gb_sent_a_step"] * 1e9 == pytest.approx(nbytes, rel=1e-3)
    assert nbytes == pytest.approx(share * 11_689_512, rel=1e-2)


@pytest.mark.of_every_strategy
def test_of_what_has_no_simple_form_nothing_is_predicted() -> None:
    for kind in STRATEGIES.values():
        # Who is late has no simple form, nor what is hidden behind which layer; what is not chosen yet has none at all.
        without = kind.traits.asynchronous or kind in (BackupWorkers, StreamingDiLoCo, FastestAllReduce)
        assert (predict(kind(), 4, 1000, 0.1, 1e9, 1e-4) is None) == without
    assert predict(NaiveAllReduce(), 1, 1000, 0.1, 1e9, 1e-4) == 0.1, "nobody is there to send to"


@pytest.mark.parametrize(
    ("strategy", "changes", "length"),
    [
        (Downpour(n_push=25, n_fetch=10), {}, 50),
        (AsyncParamServer(), {"slow": ("2:1000",)}, 1),
        (RingAllReduce(), {"jitter": 0.5}, 1),
    ],
)
def test_a_step_is_that_of_a_long_run(strategy: Strategy, changes: dict[str, Any], length: int) -> None:
    assert period(strategy) == length
    short, long = (steps_of(strategy, 3, 7e6, steps=steps, **changes).seconds for steps in (None, 8 * length + 101))
    assert steps_of(strategy, 3, 7e6, **changes).steps > 40, "one may be unlike the others"
    assert short == pytest.approx(long, rel=0.05)


def test_an_asynchronous_step_is_that_of_all_workers() -> None:
    run = steps_of(AsyncParamServer(), 3, 1e3, latency="0s")
    assert run.seconds == pytest.approx(0.3, rel=0.03), "two workers that wait for nobody until the end"
    assert steps_of(BackupWorkers(), 4, 1e3, latency="0s", slow=("3:5",), steps=4).seconds < 1.2, "not for the slowest"


def test_models_by_name() -> None:
    pytest.importorskip("torchvision")
    for name, parameters in (("resnet18", 11_689_512), ("vit_b_16", 86_567_656)):
        sizes = sizes_of(Options(model=name), None)
        assert sizes.parameters == parameters
    assert sizes_of(Options(model="resnet18"), None).buffers == 9600
    flops = count_flops(Options(model="resnet18"), None, samples=2)
    assert flops["forward"] == pytest.approx(2 * 2 * 1.814e9, rel=1e-2), "torchvision counts multiplications"
    assert count_flops(Options(), 1e9, samples=3) == {"forward": 6e9, "backward": 12e9}
    run = dry_run(options_of(RingAllReduce(), 2, model="resnet18"), ClusterOptions(flops=1e12), None, 1, quiet=True)
    assert run.phases["forward"] == pytest.approx(2 * flops["forward"] / 1e12)


@pytest.mark.parametrize(
    ("changes", "cluster", "parameters", "message"),
    [
        ({"layers": 9}, {"compute": "1s"}, 7, "--layers 9: must be from 1 to 1000, and at most --parameters"),
        ({"layers": 2, "model": "mlp"}, {"compute": "1s"}, None, "--layers 2: of --parameters; --model mlp has its"),
        ({}, {}, 7e9, "--compute: nothing is computed on the meta device"),
        ({}, {"compute": "1s"}, float("nan"), "--parameters nan: must be a whole number"),
        ({"codec": CODECS["powersgd"]()}, {"compute": "1s"}, 7e9, "--codec powersgd: codes matrices, and --parameters"),
        ({"codec": CODECS["blosc"]()}, {"compute": "1s"}, 7e9, "--codec blosc: how long its codes are depends on the"),
        ({"codec": TopK(sampled=True)}, {"compute": "1s"}, 7e9, "--codec topk: how long its codes are depends on the"),
        ({"model": "lenet"}, {"compute": "1s"}, 7e9, "--model lenet: --parameters says all"),
        ({"model": "gpt"}, {"compute": "1s"}, None, "--model gpt: takes no images, as models on the meta device do; "),
        ({"model": "no_such_net"}, {"compute": "1s"}, None, "--model no_such_net: unknown"),
        ({"epochs": 3}, {"compute": "1s"}, 7e9, "--epochs 3: nothing is trained on the meta device"),
        ({}, {"compute": "1s", "kill": ("1@1s",)}, 7e9, "--kill: no rank can die"),
        ({"optimizer": "adafactor"}, {"compute": "1s"}, 7e9, "--optimizer adafactor: takes no step on the meta device"),
        ({"model": "mlp", "batch_size": 10**21}, {"flops": 1e9}, None, "--model mlp: its operations cannot be counted"),
        ({"global_batch_size": 5}, {"compute": "1s"}, 7e9, "--global_batch_size 5: 3 workers cannot share it"),
    ],
)
def test_what_is_wrong_is_one_line(
    changes: dict[str, Any], cluster: dict[str, Any], parameters: float | None, message: str
) -> None:
    layers = changes.pop("layers", 1)
    with pytest.raises(UsageError, match=rf"^{re.escape(message)}.*\Z"):
        dry_run(
            options_of(RingAllReduce(), 3, **changes), ClusterOptions(**cluster), parameters, 1, quiet=True,
            layers=layers,
        )  # fmt: skip
