"""Sees the batches that loaders hand out and the files that ranks open."""

import builtins
import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils.data import IterableDataset, Subset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from gradwire.checking.rank import SeenRank, checksum, quiet
from gradwire.checking.seen import Epoch, FileUse, Run
from gradwire.torch_scripts.threads import RankThread, here

_MOST_ROWS = 512


class Loading:
    """Notes what all ranks load."""

    def __init__(self, run: Run, ranks: Sequence[SeenRank]) -> None:
        self.run, self.ranks = run, ranks

    def replacements(self) -> list[tuple[Any, str, Any]]:
        """Return (owner, name, value) of each attribute that is replaced while a script is watched."""
        return [
            (_BaseDataLoaderIter, "__init__", self._begin_epoch(_BaseDataLoaderIter.__init__)),
            (_BaseDataLoaderIter, "_next_index", self._take(_BaseDataLoaderIter._next_index)),
            (_BaseDataLoaderIter, "__next__", self._batch(_BaseDataLoaderIter.__next__)),
            *((owner, "open", self._open(builtins.open)) for owner in (builtins, io)),
            (torch, "save", self._save(torch.save)),
            *((os.path, name, self._exists(getattr(os.path, name))) for name in ("exists", "isfile")),
        ]

    def _here(self) -> tuple[RankThread, SeenRank] | None:
        rank = here()
        return None if rank is None else (rank, self.ranks[rank.rank])

    # Batches

    def _begin_epoch(self, real: Callable[..., None]) -> Callable[..., None]:
        def begin(iterator: Any, loader: Any) -> None:
            self.run.streams |= isinstance(loader.dataset, IterableDataset)
            if (found := self._here()) is not None and hasattr(loader.dataset, "__len__"):
                rank, seen = found
                data, of = loader.dataset, list(range(len(loader.dataset)))
                while isinstance(data, Subset):
                    of, data = [data.indices[i] for i in of], data.dataset
                tensors = getattr(data, "tensors", None)
                with quiet(rank):
                    content = checksum(tensors[0]) if tensors else None
                    number = seen.loaders.setdefault(loader, len(seen.loaders))
                    epoch = Epoch(rank.rank, number, rank.line(), len(data), of, loader.sampler, content)
                    if loader.batch_sampler is not None and type(loader.batch_sampler).__module__ != "__main__":
                        seen.epochs[iterator] = epoch
                        self.run.epochs.append(epoch)
            real(iterator, loader)

        return begin

    def _take(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def take(iterator: Any) -> Any:
            found = self._here()
            epoch = found[1].epochs.get(iterator) if found else None
            try:
                index = real(iterator)
            except StopIteration:
                if epoch is not None:
                    epoch.has_ended = True
                raise
            if epoch is not None and isinstance(index, list) and all(isinstance(i, int) for i in index):
                epoch.indices += [epoch.of[i] for i in index]
                epoch.last = [epoch.of[i] for i in index]
            return index

        return take

    def _batch(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def take(iterator: Any) -> Any:
            batch, found = real(iterator), self._here()
            epoch = found[1].epochs.get(iterator) if found else None
            if found is not None and epoch is not None:
                found[1].epoch = epoch
                parts = batch if isinstance(batch, list | tuple) else [batch]
                tensors = [part for part in parts if isinstance(part, torch.Tensor)]
                last = epoch.last
                if iterator._num_workers == 0 and all(len(part) == len(last) for part in tensors):
                    with quiet(found[0]):
                        rows = [row_checksums([part]) for part in tensors]
                        epoch.rows |= dict(zip(last, zip(*rows, strict=True), strict=False))
            return batch

        return take

    # Files

    def _open(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def opened(file: Any, mode: str = "r", *arguments: Any, **more: Any) -> Any:
            result = real(file, mode, *arguments, **more)
            self._note_file(file, mode)
            return result

        return opened

    def _save(self, real: Callable[..., None]) -> Callable[..., None]:
        def save(obj: Any, f: Any, *arguments: Any, **more: Any) -> None:
            self._note_file(f, "wb")
            real(obj, f, *arguments, **more)

        return save

    def _exists(self, real: Callable[[Any], bool]) -> Callable[[Any], bool]:
        def look(path: Any) -> bool:
            result = real(path)
            if result and (found := self._here()) is not None:  # who waits for a file knows what came before it
                name = os.path.abspath(path) if isinstance(path, str | os.PathLike) else ""
                for use in self.run.files:
                    if use.path == name and "r" not in use.mode:
                        found[1].join(use.clock)
            return result

        return look

    def _note_file(self, file: Any, mode: str) -> None:
        found = self._here()
        if found is None or not isinstance(file, str | os.PathLike) or isinstance(file, bytes):
            return
        rank, seen = found
        path = os.path.abspath(os.fspath(file))
        if path.startswith((sys.prefix, sys.base_prefix, "/dev/", "/proc/", "/sys/")) or path.endswith((".py", ".pyc")):
            return
        seen.tick()
        self.run.files.append(FileUse(rank.rank, path, mode, rank.line(), tuple(seen.clock)))


def row_checksums(values: Any) -> list[int]:
    """Return checksums of the rows of the first tensor."""
    first = next((value for value in values if isinstance(value, torch.Tensor)), None)
    if first is None or not first.dim() or isinstance(first, DTensor):
        return []
    return [checksum(row) for row in first.detach()[:_MOST_ROWS]]
