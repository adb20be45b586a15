"""Train one network on several processes of this machine.

python train.py --strategy param_server --n_gpus 4        # rank 0 serves, ranks 1 to 3 train on a third each

python train.py --strategy ring_all_reduce --n_gpus 4     # four ranks in a ring

More commands and the options: python train.py --help. The same as `python -m gradwire train`.
"""

import sys

if __name__ == "__main__":
    from gradwire.command import main

    sys.exit(main(["train", *sys.argv[1:]]))
