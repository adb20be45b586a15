"""Train one network on several processes of this machine.

python train.py --strategy param_server --n_gpus 4        # rank 0 serves, ranks 1 to 3 train on a third each

python train.py --strategy ring_all_reduce --n_gpus 4     # four ranks in a ring

python train.py --strategy single --workers_like 4        # one process on the same batches: the reference

torchrun --nproc-per-node 3 train.py --strategy ring_all_reduce    # the same algorithm over torch.distributed

mpirun -n 2 python train.py --strategy ring_all_reduce    # over MPI

python train.py --strategy ring_all_reduce --launcher dask    # on Dask's workers

python train.py --strategy yourmodule:YourClass           # a strategy of your own

python train.py --list                                    # all strategies, and what they send

python -m gradwire compare results/*.json                 # runs side by side

python -m gradwire plot results/*.json                    # scores and loss against epochs, seconds and bytes
"""

import sys

if __name__ == "__main__":
    from gradwire.command import main

    sys.exit(main(["train", *sys.argv[1:]]))
