"""A model seen as three flat vectors, the way the papers write it: parameters x, gradient g, buffers b."""

from functools import cached_property
from typing import Any

import torch
from torch import nn

from gradwire.core.strategy.passes import Passes
from gradwire.core.strategy.tensors import (
    bytes_of,
    copy_bytes_into,
    copy_into,
    float_buffers,
    integer_buffers,
    integers_of,
    layout_of,
    other_tensors,
    trained,
    views_of,
)
from gradwire.core.transports.base import Message, Transport


class Replica(Passes):
    """One rank's copy of the model, its tensors being views of flat vectors that peers can read in place.

    `x` [n] holds the trainable parameters (a tied one once), `g` [n] their gradients, allocated when it is first asked
    for, `b` [m] the floating-point buffers (BatchNorm statistics). Frozen parameters and other buffers stay as they
    are: `others` is all of them, and `counts` the integer buffers (BatchNorm's count of batches), which have no mean.
    Raises ValueError if the model has nothing to train, or more than one floating dtype or device.

    The module's `state_dict` holds copies: plain tensors, a tied one under each of its names. `torch.save` of a single
    parameter writes all of `x`; save `parameter.detach().clone()`.
    """

    def __init__(self, model: nn.Module, transport: Transport) -> None:
        super().__init__(model, trained(model), transport.recorder)
        self._transport = transport
        self.layout = layout_of(model)
        buffers = float_buffers(model)
        kinds = {(t.dtype, t.device) for t in (*self.parameters, *buffers)}
        if not self.parameters:
            raise ValueError("the model has no trainable parameter")
        if len(kinds) > 1:
            found = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
            raise ValueError(f"the model's parameters and buffers must share one dtype and device, but are {found}")
        dtype = self.parameters[0].dtype
        n = sum(p.numel() for p in self.parameters)
        with transport.recorder.holding("parameters"):
            self.x = self._own_x = transport.allocate(n, dtype)
        self.b = transport.allocate(sum(b.numel() for b in buffers), dtype)
        self._adopted: Message | None = None
        self.collects = True  # whether the backward pass puts each gradient into g as soon as it is complete
        self.collected = False  # whether `collect` was called since the caller last set this to False
        self.lacking: set[int] = set()  # parameters that the last backward pass has given no gradient
        self._early: set[int] = set()  # gradients that a backward pass has put into g since the last `collect`
        for tensor, view in (*zip(self.parameters, views_of(self.x, self.parameters), strict=True),
                             *zip(buffers, views_of(self.b, buffers), strict=True)):  # fmt: skip
            view.copy_(tensor.detach())
            tensor.data = view
        for i, parameter in enumerate(self.parameters):
            parameter.register_post_accumulate_grad_hook(lambda _, i=i: self._collect_early(i))
        for module in model.modules():
            module.register_state_dict_post_hook(_detach_from_vectors)

    @cached_property
    def g(self) -> torch.Tensor:
        """The gradient [n]."""
        with self._transport.recorder.holding("gradients"):
            return self._transport.allocate(self.layout.n, self.x.dtype)

    @cached_property
    def _gradients(self) -> list[torch.Tensor]:
        return views_of(self.g, self.parameters)

    # Called by a training loop

    @property
    def has_own_gradient(self) -> bool:
        """Whether a backward pass leaves this rank's own gradient in the model, and not the result of a reduction."""
        return not self.is_watched

    @property
    def module(self) -> nn.Module:
        """What computes the outputs."""
        return self.model

    def begin_microbatch(self, n: int, n_of_all: int, is_last: bool) -> None:
        """Announce the next piece of a gradient: its loss is a mean over `n` of the batch's `n_of_all`, as is known."""

    def rescale(self, n: int, expected: int) -> None:
        """Say before the last backward pass that `n` it is, where n may vary: scale what the pieces before gave."""
        self._scale(expected / n)

    def _scale(self, factor: float) -> None:
        for parameter in trained(self.module) if factor != 1 else ():
            if parameter.grad is not None:
                parameter.grad.mul_(factor)

    def tensors(self) -> list[torch.Tensor]:
        """Return all of the module's state that is the same on ranks that agree."""
        return [*self.parameters, *float_buffers(self.model), *other_tensors(self.model)]

    def close(self) -> None:
        """Free what training has allocated."""

    def collect(self) -> torch.Tensor:
        """Return g [n], the gradient that the last backward pass left; missing gradients are -0: see `missing`.

        A `.grad` that is not a view of g (after `zero_grad`, by a hook) is copied into g. The backward pass is over, so
        adopted parameters are released: do not read x until the next `adopt`.
        """
        self.end_pass()
        for i in range(len(self.parameters)):
            self.collect_one(i)
        self._early.clear()
        self._give_back()
        self.collected = True
        return self.g

    def collect_in_place(self) -> None:
        """As `collect`, but leave each gradient where the backward pass has made it: in its parameter's `.grad`."""
        for i, parameter in enumerate(self.parameters):
            if parameter.grad is None:
                self.collect_one(i)
        self._give_back()
        self.collected = True

    def _collect_early(self, i: int) -> None:
        """In the backward pass: free what autograd has made. Only once, for a loop may keep this `.grad` for a next."""
        if self.collects and i not in self._early:
            self._early.add(i)
            self.collect_one(i)

    def collect_one(self, i: int) -> None:
        """Copy the gradient of parameter `i` to its place in g."""
        view = self._gradients[i]
        if self.parameters[i].grad is not view:
            self.copy_gradient(i, view)
        self.parameters[i].grad = view

    def copy_gradient(self, i: int, view: torch.Tensor) -> None:
        """Copy the gradient of parameter `i` into `view`; a missing one is -0, and -0 becomes 0."""
        gradient = self.parameters[i].grad
        if gradient is None:
            self.lacking.add(i)
            view.fill_(-0.0)
        else:
            self.lacking.discard(i)
            torch.add(gradient.detach(), 0.0, out=view)

    def free_x(self) -> None:
        """Forget x, whose elements are kept elsewhere: it reads as NaN."""
        if self.x is self._own_x:
            self._transport.free(self.x)
        self._own_x = self.x = torch.full((1,), torch.nan, dtype=self.x.dtype, device=self.x.device).expand(
            self.layout.n
        )

    def zero_grad(self) -> None:
        """Forget the gradients. The next backward pass then need not add to zeros: it makes new ones."""
        for parameter in self.parameters:
            parameter.grad = None

    @property
    def counts(self) -> torch.Tensor:
        """The integer buffers as one int64 vector [k], a copy; setting it copies its elements into them."""
        return integers_of(self.model)

    @counts.setter
    def counts(self, counts: torch.Tensor) -> None:
        copy_into(integer_buffers(self.model), counts)

    @property
    def others(self) -> torch.Tensor:
        """The bytes [k] of the frozen parameters and of the buffers that are not in `b`, a copy; setting it copies."""
        return bytes_of(other_tensors(self.model))

    @others.setter
    def others(self, others: torch.Tensor) -> None:
        copy_bytes_into(other_tensors(self.model), others)

    def adopt(self, message: Message) -> None:
        """x <- the vector of `message`, read in the sender's memory until the next `collect`: it is read-only."""
        self._give_back()
        self._adopted = message.log_receipt()
        self.point_at(message.vector)

    def own(self) -> None:
        """Copy adopted parameters into memory of this rank's own, and give them back."""
        if self._adopted:
            self._own_x.copy_(self.x)
            self.point_at(self._own_x)
            self._give_back()

    def point_at(self, x: torch.Tensor) -> None:
        """Point the parameters at `x` [n], without copying."""
        self.x = x
        for parameter, view in zip(self.parameters, views_of(x, self.parameters), strict=True):
            parameter.data = view

    def _give_back(self) -> None:
        if self._adopted:
            self._adopted.release()
            self._adopted = None


def _detach_from_vectors(module: nn.Module, state: dict[str, Any], prefix: str, _: object) -> None:
    """Put copies into a module's `state_dict`: a view is saved with the whole vector, and safetensors refuses views."""
    for name in (*module._parameters, *module._buffers):
        tensor = state.get(prefix + name)
        if isinstance(tensor, torch.Tensor) and not isinstance(tensor, nn.Parameter):  # which keep_vars asks for
            state[prefix + name] = tensor.detach().clone()
