"""The losses of a watched run: the gradient that reaches each, and how many targets it counts."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from gradwire.checking.rank import SeenRank, quiet
from gradwire.checking.seen import Criterion
from gradwire.torch_scripts.threads import RankThread

_MEANS = (
    "cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "kl_div",
)  # fmt: skip


class Losses:
    """Notes the losses of all ranks; `here` returns the rank that calls it, if there is one."""

    def __init__(self, here: Callable[[], tuple[RankThread, SeenRank] | None]) -> None:
        self._here = here

    def replacements(self) -> Iterator[tuple[Any, str, Any]]:
        """Yield (owner, name, value) of each attribute that is replaced while a script is watched."""
        for name in _MEANS:
            yield nn.functional, name, self._criterion(getattr(nn.functional, name))
        yield torch.Tensor, "mean", self._mean(torch.Tensor.mean)

    def _criterion(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def lose(*arguments: Any, **more: Any) -> Any:
            loss = real(*arguments, **more)
            if (found := self._here()) is not None and isinstance(loss, torch.Tensor) and not loss.dim():
                target = more.get("target", arguments[1] if len(arguments) > 1 else None)
                if isinstance(target, torch.Tensor) and loss.requires_grad:
                    with quiet(found[0]):
                        n = target.shape[0] if target.dim() else 1
                        if not target.is_floating_point():
                            n = int((target != more.get("ignore_index", -100)).sum())
                    is_mean = more.get("reduction", "mean") in ("mean", "batchmean")
                    _note(*found, loss, n, is_mean)
            return loss

        return lose

    def _mean(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def mean(value: torch.Tensor, *arguments: Any, **more: Any) -> Any:
            result = real(value, *arguments, **more)
            is_loss = isinstance(result, torch.Tensor) and result.requires_grad and not result.dim() and value.dim()
            if is_loss and (found := self._here()) is not None and not found[1].modules:
                _note(*found, result, value.shape[0], True)
            return result

        return mean


def _note(rank: RankThread, seen: SeenRank, loss: torch.Tensor, n: int, is_mean: bool) -> None:
    at = rank.line()

    def reach(gradient: torch.Tensor) -> None:
        with quiet(rank):
            task = torch._C._current_graph_task_id()
            weight = float(gradient) * (1 if is_mean else n)
            seen.criteria.setdefault(task, []).append(Criterion(weight, n, is_mean, at))

    loss.register_hook(reach)
