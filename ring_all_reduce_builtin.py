"""The baseline of ring_all_reduce: DistributedDataParallel, with the options of train.py.

python ring_all_reduce_builtin.py --n_gpus 4

The options: python ring_all_reduce_builtin.py --help. The same as `python -m gradwire ring_all_reduce_builtin`.
"""

import sys

if __name__ == "__main__":
    from gradwire.command import main

    sys.exit(main(["ring_all_reduce_builtin", *sys.argv[1:]]))
