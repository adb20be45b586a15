"""Hooks that run for each gradient during the backward pass of a model."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from queue import SimpleQueue
from threading import Thread
from typing import Any

import torch
from torch import nn

from gradwire.core.records.errors import RunFailed
from gradwire.core.records.recorder import Recorder


class Passes:
    """The passes of a model whose gradients are computed; in virtual time they take the shares of their parameters.

    There ranks are coroutines of one thread, which cannot be suspended inside torch's backward pass. So it runs in a
    thread of its own, and passes the calls of its hooks to the rank.
    """

    def __init__(self, model: nn.Module, parameters: list[nn.Parameter], recorder: Recorder) -> None:
        self.model, self.parameters, self._recorder = model, parameters, recorder
        self.is_watched = False  # whether something is called in the passes
        self.interruption: Callable[[], AbstractContextManager[None]] = nullcontext  # entered while it is called
        self._asked: SimpleQueue[Callable[[], None] | None] | None = None  # by the backward pass, in its thread
        self._answers: SimpleQueue[BaseException | None] = SimpleQueue()
        self._late: list[int] = []  # gradients of a backward pass without that thread

    def backward(self, loss: torch.Tensor) -> None:
        """Compute the gradients of a piece."""
        if not (self.is_watched and self._recorder.time_passes):
            loss.backward()
            return
        errors: list[BaseException] = []
        asked: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._asked = asked

        def compute() -> None:
            try:
                loss.backward()
            except BaseException as error:
                errors.append(error)
            asked.put(None)

        thread = Thread(target=self._recorder.in_thread(compute), daemon=True)
        thread.start()
        while (call := asked.get()) is not None:
            try:
                call()
            except BaseException as error:  # which ends the pass
                self._answers.put(error)
            else:
                self._answers.put(None)
        thread.join()
        self._asked = None
        if errors:
            raise errors[0]

    def on_gradient(self, call: Callable[[int], None]) -> None:
        """Call `call(i)` in every backward pass as soon as the gradient of parameter i is complete.

        The last layer comes first; a parameter that takes no part is left out.
        """
        self._on_gradient, self.is_watched = call, True
        for i, parameter in enumerate(self.parameters):
            parameter.register_post_accumulate_grad_hook(lambda _, i=i: self._tell(i))

    def _tell(self, i: int) -> None:
        if self._recorder.time_passes and self._asked is None:
            self._late.append(i)
        else:
            self.in_backward(self.call_on_gradient, i)

    def end_pass(self) -> None:
        """In virtual time, after `loss.backward()` in place of `backward(loss)`: call for each gradient now."""
        while self._late:
            self.call_on_gradient(self._late.pop(0))

    def call_on_gradient(self, i: int) -> None:
        """Call what `on_gradient` was given: the gradient of parameter `i` is complete."""
        self._recorder.spend("backward", i)
        self._on_gradient(i)

    def in_backward(self, call: Callable[[Any], None], of: Any) -> None:
        """In the backward pass: call it, or have the rank call it."""
        if self._recorder.time_passes is None:
            with self.interruption():
                call(of)
            return
        if self._asked is None:
            raise RunFailed("in virtual time this strategy needs replica.backward(loss) in place of loss.backward()")
        self._asked.put(lambda: call(of))
        if (error := self._answers.get()) is not None:
            raise error
