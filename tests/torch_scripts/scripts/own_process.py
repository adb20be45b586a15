# mypy: ignore-errors
"""What a rank finds of its process: the argument names what is tried, which exits with 0 if it is as in a process."""

import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

name, rank = sys.argv[1], int(os.environ["RANK"])
dist.init_process_group("gloo")

if name == "folder":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        dist.barrier()
        assert os.path.samefile(folder, os.getcwd())
        os.chdir("/")
elif name == "dtype":
    if rank == 1:
        torch.set_default_dtype(torch.float64)
    dist.barrier()
    assert torch.ones(1).dtype == (torch.float64 if rank == 1 else torch.float32)
elif name == "clocks":
    begun = time.time(), time.perf_counter(), time.time_ns()
    time.sleep(1000 + rank)
    took = time.time() - begun[0], time.perf_counter() - begun[1], (time.time_ns() - begun[2]) / 1e9
    assert all(abs(one - 1000 - rank) < 1e-3 for one in took), took
elif name == "warnings":
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always" if rank == 0 else "ignore")
        for number in range(2):
            dist.barrier()
            warnings.warn(f"{number} of rank {rank}", stacklevel=1)
        dist.barrier()
    assert [str(warning.message) for warning in found] == ([] if rank else ["0 of rank 0", "1 of rank 0"]), found
elif name == "signals":
    before = signal.signal(signal.SIGTERM, print)
    dist.barrier()
    assert (before, signal.getsignal(signal.SIGTERM)) == (signal.SIG_DFL, print)
elif name == "output":
    sys.stdout.buffer.write(f"Zürich {rank}\n".encode())
    sys.stdout.reconfigure(line_buffering=True)
    dist.barrier()
elif name == "children":
    dist.barrier()
    shown = subprocess.run([sys.executable, "-c", "import os; print(os.environ['RANK'])"], stdout=subprocess.PIPE)
    assert int(shown.stdout) == rank
    assert os.system(f'test "$RANK" = {rank}') == 0
    assert os.waitstatus_to_exitcode(os.system("exit 3")) == 3
elif name == "leaves":
    if rank == 1:
        os._exit(0)
    Path(sys.argv[2]).touch()
elif name == "forks":
    os.fork()
elif name == "nobody":
    dist.send(torch.ones(1), 99)
elif name == "late":
    group = dist.new_group(timeout=timedelta(seconds=7))
    begun = time.perf_counter()
    if rank == 0:
        try:
            dist.barrier(group)
        except RuntimeError as error:
            print(f"after {time.perf_counter() - begun:.0f} s: {error}")
elif name == "accumulates":
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(6):
        model(torch.ones(2, 4)).sum().backward()
        if i % 2:
            optimizer.step()
elif name == "ignite":
    import ignite.distributed as idist

    idist.sync()
    dist.barrier()
    assert (idist.get_rank(), idist.get_world_size(), idist.backend()) == (rank, 2, "gloo")
    assert idist.all_gather(rank) == [0, 1]
    if rank == 0:
        idist.finalize()
    assert idist.get_world_size() == (2 if rank else 1)
elif name == "accelerate":
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    dist.barrier()
    assert (accelerator.process_index, accelerator.num_processes) == (rank, 2)
    assert accelerator.gather(torch.tensor([rank])).tolist() == [0, 1]
