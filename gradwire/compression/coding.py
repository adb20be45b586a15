"""Gradients on their way as codes: one codec at each end of each link, and sums of codes over all ranks."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from gradwire.compression import DENSE, KINDS, Codec, Layout, Setting
from gradwire.compression.base import Linear
from gradwire.compression.none import NoCodec
from gradwire.core.records.errors import RunFailed, UsageError
from gradwire.core.records.options import check_limits
from gradwire.core.strategy.codes import AllReduce
from gradwire.core.strategy.factories import OptimizerFactory
from gradwire.core.strategy.missing import MISSING, Missing
from gradwire.core.strategy.replica import Replica
from gradwire.core.strategy.strategy import Strategy
from gradwire.core.strategy.traits import Coded, Cost
from gradwire.core.strategy.updater import optimizer_of
from gradwire.core.transports.base import Message, Transport


@dataclass(frozen=True)
class CodecFactory:
    """Makes the codec at each end of each link."""

    codec: Codec
    setting: Setting

    def __call__(self, layout: Layout, like: torch.Tensor, rank: int, sends: bool) -> Codec:
        """Return a codec that has started: of vectors of this layout, like `like`, which `rank` sends, maybe here."""
        own = dataclasses.replace(self.codec)
        own.start(layout, like, dataclasses.replace(self.setting, rank=rank, sends=sends))
        return own

    def begin(self, replica: Replica, transport: Transport, dense: float, sends: bool) -> "Coding":
        """Return what codes the gradients of a run on one rank."""
        return Coding(self, replica, transport, dense, sends)


def codec_factory(codec: Codec | None, setting: Setting) -> CodecFactory | None:
    """Return what makes the codecs; None: gradients are sent as they are."""
    return None if codec is None or isinstance(codec, NoCodec) else CodecFactory(codec, setting)


def coded(cost: Cost, make: CodecFactory | None, layout: Layout, like: torch.Tensor, epoch: int) -> Coded | None:
    """Return the kind and length, at most, of the code of a gradient like this in an epoch; None: there is no codec.

    The codec is the algorithm's own, or what `make` makes.
    """
    codec = cost.code
    if codec is not None:
        codec.start(layout, like, Setting(cost.scope))
    elif make is not None:
        codec = make(layout, like, 0, True)
    else:
        return None
    codec.epoch = epoch
    return Coded(codec.kind, sum(codec.count()))


class CannotCarry(UsageError):
    """A strategy cannot send its gradients by a codec of this kind."""


def check_codec(codec: Codec | None, strategy: Strategy, scope: str, optimizer: OptimizerFactory) -> None:
    """Check that a strategy with this optimizer can send its gradients by the codec.

    Raises UsageError, CannotCarry.
    """
    if codec is None or isinstance(codec, NoCodec):
        return
    check_limits(codec)
    codec.check()
    if codec.kind not in strategy.traits.carries:
        from gradwire.strategies import STRATEGIES  # which imports this module

        able = [name for name, other in STRATEGIES.items() if codec.kind in other.traits.carries]
        raise CannotCarry(
            f"--codec {codec.name}: --strategy {strategy.name} cannot carry it ({codec.kind}: {KINDS[codec.kind]}); "
            f"{', '.join(able)} can"
        )
    if codec.tensors_only and scope != "tensor":
        raise UsageError(f"--codec_scope {scope}: {codec.name} codes tensor by tensor; leave it out")
    if codec.carries_momentum:
        why = f"{codec.name} carries the momentum of sgd"
        made = optimizer_of(torch.optim.SGD, optimizer, why, "take sgd or another --codec")
        for option in ("momentum", "dampening", "nesterov"):
            if value := made.param_groups[0][option]:
                raise UsageError(
                    f"--optimizer_options {option}={value}: {codec.name} carries the momentum, and the optimizer has "
                    "none; leave it out"
                )


class Coding:
    """How the gradients of a run travel as codes, on one rank: a codec of its own, and one for each sender it reads.

    `dense`: the bytes that the rank would send in place of a code, for comparison; `sends`: whether it sends gradients.
    """

    def __init__(self, make: CodecFactory, replica: Replica, transport: Transport, dense: float, sends: bool) -> None:
        self._make, self._replica, self._transport = make, replica, transport
        self._recorder = transport.recorder
        self.dense = dense
        self._own = make(replica.layout, replica.x, transport.rank, True) if sends else None
        self._senders: dict[int, Codec] = {}
        self._rooms: dict[tuple[str, torch.dtype], torch.Tensor] = {}
        self._free: list[torch.Tensor] = []  # vectors to decode into
        x, layout = replica.x, replica.layout
        self._places = Missing(layout.slices, [slice(0, layout.n)], x.device)
        self._absent: dict[int, set[int]] = {}  # by sender: the tensors that it has no gradient of
        self._told: set[int] = set()  # those of this rank, as the receivers know them
        self.missing: set[int] = set()  # in the vector to send, later in the mean: see `core.strategy.missing`

    @property
    def _sent_per_byte(self) -> float:  # by a rank in one all-reduce
        return self.dense / self._replica.x.nbytes

    @property
    def codec(self) -> Codec:
        """The codec by which this rank sends."""
        assert self._own is not None, "only on a rank that sends gradients"
        return self._own

    # To a server

    def encode(self, vector: torch.Tensor, times: float = 1) -> torch.Tensor:
        """Return the code of `vector` [n], to be sent `times` times, valid until the next call. Raises RunFailed."""
        self.missing = self._places.of(vector, self._replica.lacking)
        with self._recorder.phase("compress", work="encode"):
            self.codec.epoch = max(1, self._recorder.epoch)
            code = self.codec.encode(vector)
        self._recorder.count_code(times * code.values, times * code.indices, times * code.headers, self.dense)
        return self._placed(code.data, "code")

    def decode(self, message: Message) -> Message:
        """Replace the code that a message carries by its vector [n], and release the sender's memory."""
        codec = self._sender(message.src)
        with self._recorder.holding("messages"):
            vector = self._free.pop() if self._free else torch.empty_like(self._replica.x)
        message.log_receipt()
        with self._recorder.phase("compress", work="decode"):
            codec.decode(message.vector, vector)
            self._mark(vector, message.src)
        message.replace(vector, lambda: self._free.append(vector))
        return message

    def forget(self, k: int) -> None:
        """Begin anew with sender k, which was started again."""
        self._senders.pop(k, None)
        self._absent.pop(k, None)

    def tell(self, receivers: Iterable[int]) -> None:
        """Send the numbers of the tensors without a gradient, if they are not the same as in the last code."""
        if self.missing != self._told:
            self._told = self.missing
            for k in receivers:
                self._transport.isend(self.missing, k, MISSING)

    def learn(self, message: Message) -> None:
        """Take the numbers of missing tensors from a sender."""
        with message:
            self._absent[message.src] = message.object

    def _mark(self, vector: torch.Tensor, k: int) -> None:
        """Mark as missing, in a decoded vector, the tensors without a gradient of sender k, unless a rest was sent."""
        vector.add_(0.0)  # -0 becomes 0
        absent = self._absent.get(k, ())
        self._places.mark(vector, [i for i in absent if not any(vector[at].any() for at in self._places.places[i])])

    def _sender(self, k: int) -> Codec:
        if k not in self._senders:
            self._senders[k] = self._make(self._replica.layout, self._replica.x, k, False)
        return self._senders[k]

    # Between all ranks

    def mean(self, vector: torch.Tensor, n: int, all_reduce: AllReduce) -> int:
        """Replace `vector` [P] on every rank by the mean of what all send for theirs, weighted with `n`.

        Return the sum of their `n`. The same bits on all ranks. Raises RunFailed, PeerLost, WaitTimeout.
        """
        if isinstance(self.codec, Linear):
            return self._mean_of_factors(self.codec, vector, n, all_reduce)
        return self._mean_of_sums(vector, n, all_reduce) if self.codec.kind == DENSE else self._mean_of_all(vector, n)

    def _mean_of_sums(self, vector: torch.Tensor, n: int, all_reduce: AllReduce) -> int:
        """Dense: the all-reduce adds the codes, in which a missing gradient is -0 too."""
        sums = self.encode(vector, self._sent_per_byte)
        self._places.mark(sums.add_(0.0), self.missing)
        total = all_reduce(sums.mul_(n), n)
        self.missing = self._places.of(sums, self.missing)
        _divide(sums, total)
        with self._recorder.phase("compress", work="decode"):
            self.codec.decode(sums, vector)
        return total

    def _mean_of_all(self, vector: torch.Tensor, n: int) -> int:
        """Gathered: the codes go to all ranks; each decodes them all and adds them in the order of ranks."""
        transport, N = self._transport, self._transport.world_size
        own = self.encode(vector, N - 1)
        self._absent[transport.rank] = self.missing
        self.tell(transport.peers)
        # Everybody begins with the right neighbour: to begin with rank 0 would wait at its card.
        sent = [transport.isend(own, (transport.rank + i) % N, "code", n=n) for i in range(1, N)]
        total, parts = 0, torch.empty_like(vector)
        vector.fill_(-0.0)  # which leaves -0 as it is
        for k in range(N):
            if k == transport.rank:
                data, n_k, message = own, n, None
            else:
                message = transport.recv(k, ("code", MISSING))
                if message.tag == MISSING:
                    self.learn(message)
                    message = transport.recv(k, "code")
                data, n_k = message.vector, message.n
            with self._recorder.phase("compress", work="decode"):
                self._mark(self.codec.decode(data, parts), k)
                vector.add_(parts, alpha=n_k)
            if message:
                message.release()
            total += n_k
        for work in sent:
            work.wait()
        self.missing = self._places.of(vector, self.missing)
        vector.div_(total)
        return total

    def _mean_of_factors(self, codec: Linear, vector: torch.Tensor, n: int, all_reduce: AllReduce) -> int:
        """Linear: the codec yields vectors, and an all-reduce averages each of them.

        Factors do not show whether a gradient was missing: it counts as 0.
        """
        self.missing = set()
        nbytes, total = 0, n
        factors = codec.reduce(vector)
        while True:
            with self._recorder.phase("compress", 1 / 3, work="encode"):
                flat = next(factors, None)
            if flat is None:
                break
            total = _mean_by(all_reduce, placed := self._placed(flat, "factors"), n)
            flat.copy_(placed)
            nbytes += flat.nbytes
        self._recorder.count_code(self._sent_per_byte * nbytes, 0, 0, self.dense)
        return total

    # Both

    def _placed(self, data: torch.Tensor, what: str) -> torch.Tensor:
        """Copy a code into memory that peers can read."""
        room = self._rooms.get((what, data.dtype))
        if room is None or room.numel() < data.numel():
            length = data.numel() if self.codec.exact_size else data.numel() * 5 // 4  # the next may be longer
            with self._recorder.holding("messages"):
                room = self._rooms[what, data.dtype] = self._transport.allocate(length, data.dtype)
        return room[: data.numel()].copy_(data)

    # Its state: see `Strategy.keep`

    @property
    def nbytes(self) -> int:
        """The bytes of the state of the rank's own codec."""
        return self._own.nbytes if self._own else 0

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each codec."""
        own = self._own.state_dict() if self._own else {}
        return {"own": own, "senders": {k: codec.state_dict() for k, codec in self._senders.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""
        if self._own:
            self._own.load_state_dict(state["own"])
        for k, saved in state["senders"].items():
            self._sender(k).load_state_dict(saved)


def _mean_by(all_reduce: AllReduce, vector: torch.Tensor, n: int) -> int:
    """Replace `vector` by its mean over all ranks, weighted with `n`; return the sum of their `n`."""
    total = all_reduce(vector.mul_(n), n)
    _divide(vector, total)
    return total


def _divide(vector: torch.Tensor, total: int) -> None:
    if vector.dtype == torch.float16 and not vector.is_meta and not bool(torch.isfinite(vector).all()):
        raise RunFailed("a sum of gradients, times their samples, is above 65504, the largest float16; take bf16")
    vector.div_(total)
