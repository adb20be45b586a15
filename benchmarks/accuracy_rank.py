"""One rank of `accuracy.py`, started by torchrun in a network namespace: argv is its jobs, and where results go."""

import pickle
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.accuracy import as_job
from launchers.torchrun import launcher

if __name__ == "__main__":
    jobs = pickle.loads(Path(sys.argv[1]).read_bytes())
    torchrun = launcher()
    results = torchrun.launch(as_job(jobs, torchrun.world_size or 1))
    if torchrun.is_first:
        Path(sys.argv[2]).write_bytes(pickle.dumps(results))
