"""Fetching by NVIDIA DALI: threads of its own read, decode, cut and resize; on a GPU it decodes there.

The files, the labels and the cut of each picture are those of the other loaders: see `Pictures.cut`.
"""

import os
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from gradwire.core.records.errors import RunFailed, UsageError, import_extra
from gradwire.core.workloads.data import Answers, Data, Request
from gradwire.images.images import Pictures, opened

Inputs = tuple[list[np.ndarray], ...]


def check_dali(data: Data) -> None:
    """Check that DALI is installed and can read the data. Raises UsageError."""
    if not isinstance(data.train, Pictures):
        raise UsageError(f"--loader dali: reads files of pictures, not {data.name}; take --dataset imagefolder")
    _import_dali()


def _import_dali(module: str = "nvidia.dali") -> Any:
    return import_extra(module, "--loader dali", "NVIDIA DALI", "dali", ", or take --loader torch")


def fetch_by_dali(data: Data, threads: int, device: torch.device, requests: Iterator[Request], largest: int) -> Answers:
    """Fetch by a pipeline of DALI with `threads` threads: see `data.Fetcher`. Raises UsageError, RunFailed."""
    feed_ndarray = _import_dali("nvidia.dali.plugin.pytorch").feed_ndarray
    taken: deque[Request] = deque()

    def inputs() -> Iterator[Inputs]:
        for request in requests:
            taken.append(request)
            yield _inputs(_pictures(data, request), request)

    pipeline = _pipeline(data.input_shape[1], threads, device, largest, inputs())
    while True:
        try:
            (images,) = pipeline.run()
        except StopIteration:
            return
        except RuntimeError as error:
            raise _explained(data, taken, error) from error
        request = taken.popleft()
        x = torch.empty(len(request.indices), *data.input_shape, dtype=torch.uint8, device=device)
        feed_ndarray(images.as_tensor(), x, torch.cuda.current_stream(device) if device.type == "cuda" else None)
        yield x, _pictures(data, request).labels[request.indices]


def _pictures(data: Data, request: Request) -> Pictures:
    pictures = data.samples(request.split)
    assert isinstance(pictures, Pictures), "as `check_dali` has found"
    return pictures


def _inputs(pictures: Pictures, request: Request) -> Inputs:
    """Yield the pipeline's input for a batch: for each picture its path and its cut."""
    paths, cuts = [], []
    for i in request.indices.tolist():
        path = pictures.path(i)
        paths.append(np.frombuffer(os.fsencode(path), dtype=np.uint8))
        with opened(path) as image:
            cuts.append(pictures.cut(i, request.epoch, image))
    return (
        paths,
        [np.array([cut.top, cut.left]) for cut in cuts],
        [np.array([cut.height, cut.width]) for cut in cuts],
        [np.array([cut.new_height, cut.new_width], dtype=np.float32) for cut in cuts],
        # Where the square begins, as a share of where it may begin.
        [np.array(cut.y / max(1, cut.new_height - pictures.size), dtype=np.float32) for cut in cuts],
        [np.array(cut.x / max(1, cut.new_width - pictures.size), dtype=np.float32) for cut in cuts],
        [np.array(cut.mirrored, dtype=np.int32) for cut in cuts],
    )


def _pipeline(size: int, threads: int, device: torch.device, largest: int, inputs: Iterator[Inputs]) -> Any:
    """Build the pipeline that makes pictures 3 x size x size of its inputs, as `Pictures.raw` does."""
    dali, fn, types = (_import_dali(f"nvidia.dali{name}") for name in ("", ".fn", ".types"))
    on_gpu = device.type == "cuda"
    pipeline = dali.Pipeline(largest, threads, device.index if on_gpu else None)
    with pipeline:
        path, corner, extent, resized, y, x, mirrored = fn.external_source(source=inputs, num_outputs=7)
        images = fn.decoders.image_slice(
            fn.io.file.read(path), corner, extent, axis_names="HW", output_type=types.RGB,
            device="mixed" if on_gpu else "cpu",
            adjust_orientation=False,  # as PIL leaves it
        )  # fmt: skip
        images = fn.resize(images, size=resized, interp_type=types.INTERP_LINEAR, antialias=True)
        images = fn.crop_mirror_normalize(
            images, crop=(size, size), crop_pos_y=y, crop_pos_x=x, mirror=mirrored,
            mean=0.0, std=1.0, dtype=types.UINT8, output_layout="CHW",
        )  # fmt: skip
        pipeline.set_outputs(images)
    pipeline.build()
    return pipeline


def _explained(data: Data, taken: deque[Request], error: RuntimeError) -> Exception:
    """Return the message for a failure of the pipeline: the picture that cannot be read, or what DALI says."""
    for request in taken:
        try:
            data.raw(request)
        except UsageError as unreadable:
            return unreadable
    said = str(error).partition("encountered:")[2] or str(error)
    return RunFailed(f"DALI failed: {' '.join(said.split())[:300]}; take --loader torch")
