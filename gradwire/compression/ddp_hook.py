"""The codecs in torch's DistributedDataParallel (DDP), as a communication hook.

    state = CodecState(TopK(density=0.01), ddp_model)
    ddp_model.register_comm_hook(state, codec_hook)

DDP calls the hook with one bucket of gradients after the other, and builds other buckets after the first step (Li et
al., 2020, PyTorch distributed: experiences on accelerating data parallel training, arXiv 2006.15704). So each parameter
has a codec of its own, and the codes of a bucket go out together.

As in DDP without a hook, the result is the plain mean over the ranks, whatever the number of their samples. The hook
returns when it has the mean: a bucket is not on its way while the backward pass goes on. A codec sees one tensor at a
time; so a bound on the norm of a rank's code, such as `local_clip` of dgc, is on each tensor's.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from gradwire.compression.base import DENSE, Codec, Linear, Setting
from gradwire.core.records.errors import UsageError
from gradwire.core.records.options import check_limits
from gradwire.core.strategy.layout import Layout

Vectors = Sequence[torch.Tensor]


class CodecState:
    """The state of the hook on one rank: a started codec for each trainable parameter.

    `model` is the DDP model, or its named parameters; `process_group` the DDP model's, by default all ranks.
    `seed` is the same on all ranks. `momentum` is for a codec that carries it: the optimizer then runs without. Set
    `epoch`, from 1 on, where the codec does not do the same in every epoch. Raises UsageError.
    """

    def __init__(
        self,
        codec: Codec,
        model: nn.Module | Iterable[tuple[str, torch.Tensor]],
        process_group: dist.ProcessGroup | None = None,
        *,
        seed: int = 0,
        momentum: float = 0.0,
    ) -> None:
        check_limits(codec)
        codec.check()
        if momentum and not codec.carries_momentum:
            raise UsageError(f"momentum={momentum}: {codec.name} does not carry it; give it to the optimizer")
        if isinstance(model, nn.parallel.DistributedDataParallel):
            model = model.module
        named = model.named_parameters() if isinstance(model, nn.Module) else model
        self.epoch = 1
        self.process_group = process_group
        self.world_size = dist.get_world_size(process_group)
        self.codecs: dict[torch.Tensor, Codec] = {}
        for i, (name, parameter) in enumerate((name, p) for name, p in named if p.requires_grad):
            # One seed for all would give all tensors of a shape the same random numbers.
            own_seed = np.random.SeedSequence([seed % 2**64, i]).generate_state(1, np.uint64)
            setting = Setting("tensor", int(own_seed[0]), dist.get_rank(process_group), self.world_size, momentum)
            own = dataclasses.replace(codec)
            own.start(Layout.of([(name, parameter)]), parameter, setting)
            self.codecs[parameter] = own

    def codec_of(self, parameter: torch.Tensor) -> Codec:
        """Return the codec of a parameter at the present epoch. Raises UsageError."""
        if parameter not in self.codecs:
            raise UsageError(
                f"a parameter of the shape {tuple(parameter.shape)} is not in the CodecState; make it from the model "
                "with which the hook is registered"
            )
        codec = self.codecs[parameter]
        codec.epoch = self.epoch
        return codec

    def mean(self, codecs: Sequence[Codec], vectors: Vectors) -> Vectors:
        """Return the mean of each vector over all ranks, as far as its codec carries it. The same bits on all ranks."""
        linear = [codec for codec in codecs if isinstance(codec, Linear)]
        if linear:
            return self._mean_of_factors(linear, vectors)
        codes = [codec.encode(vector).data for codec, vector in zip(codecs, vectors, strict=True)]
        if codecs[0].kind == DENSE:  # they are added on the way
            return [codec.decode(mean) for codec, mean in zip(codecs, self._all_reduce(codes), strict=True)]
        return self._mean_of_all(codecs, codes, vectors)

    def _mean_of_all(self, codecs: Sequence[Codec], codes: Vectors, vectors: Vectors) -> Vectors:
        """Gathered: every rank gets all codes, and adds the decoded vectors in the order of ranks."""
        lengths = torch.tensor([code.nbytes for code in codes])
        known = all(codec.exact_size for codec in codecs)
        of_ranks = [lengths] * self.world_size if known else self._all_gather(lengths.to(vectors[0].device))
        sent = torch.cat([code.view(torch.uint8) for code in codes])
        longest = max(int(theirs.sum()) for theirs in of_ranks)
        rows = self._all_gather(nn.functional.pad(sent, (0, longest - len(sent))))
        sums = [torch.zeros_like(vector) for vector in vectors]
        for row, theirs in zip(rows, of_ranks, strict=True):
            pieces = row[: int(theirs.sum())].split(theirs.tolist())
            for total, codec, code, piece in zip(sums, codecs, codes, pieces, strict=True):
                total.add_(codec.decode(piece.clone().view(code.dtype)))  # a clone begins where any dtype may
        return [total.div_(self.world_size) for total in sums]

    def _mean_of_factors(self, codecs: Sequence[Linear], vectors: Vectors) -> Vectors:
        """Linear: average the vectors that the codecs yield; the next vectors of all codecs go out together."""
        reductions = [codec.reduce(vector) for codec, vector in zip(codecs, vectors, strict=True)]
        while factors := [flat for reduction in reductions if (flat := next(reduction, None)) is not None]:
            for flat, mean in zip(factors, self._all_reduce(factors), strict=True):
                flat.copy_(mean)
        return vectors

    def _all_reduce(self, vectors: Vectors) -> Vectors:
        """Return the means over all ranks. Each part is divided before the sum, which float16 may not hold."""
        flat = torch.cat(list(vectors)).div_(self.world_size)
        if len(flat):
            dist.all_reduce(flat, group=self.process_group)
        return flat.split([len(vector) for vector in vectors])

    def _all_gather(self, vector: torch.Tensor) -> list[torch.Tensor]:
        """Return the vectors of all ranks, which have the same length, in the order of ranks."""
        vectors = [torch.empty_like(vector) for _ in range(self.world_size)]
        dist.all_gather(vectors, vector, group=self.process_group)
        return vectors

    def state_dict(self) -> dict[str, Any]:
        """Return all that this rank needs to continue later: each rank has its own."""
        by_parameter = {codec.layout.names[0]: codec.state_dict() for codec in self.codecs.values()}
        return {"epoch": self.epoch, "codecs": by_parameter}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict` of the same codec, model and rank. Raises UsageError if it is of other ones."""
        of_state, own = state["codecs"], self.state_dict()["codecs"]
        saved, current = ({name: entries.keys() for name, entries in codecs.items()} for codecs in (of_state, own))
        if saved != current:
            raise UsageError("this state is of another codec or model; load one of the same codec and model")
        self.epoch = state["epoch"]
        for codec in self.codecs.values():
            codec.load_state_dict(of_state[codec.layout.names[0]])


def codec_hook(state: CodecState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Replace the gradients of a bucket by their mean over all ranks, sent by codecs; return them, already there.

    Raises RunFailed if a gradient is not finite, UsageError if the state is of another model.
    """
    codecs = [state.codec_of(parameter) for parameter in bucket.parameters()]
    gradients = bucket.gradients()
    means = state.mean(codecs, [gradient.reshape(-1) for gradient in gradients])
    for gradient, mean in zip(gradients, means, strict=True):
        gradient.copy_(mean.view(gradient.shape))
    buffer = bucket.buffer()
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=[buffer.device] if buffer.is_cuda else [])
    future.set_result(buffer)
    return future
