"""Train one network on several processes of this machine.

python train.py --strategy param_server --n_gpus 4        # rank 0 serves, ranks 1 to 3 train on a third each

python train.py --strategy ring_all_reduce --n_gpus 4     # four ranks in a ring

python train.py --strategy single --workers_like 4        # one process on the same batches: the reference

torchrun --nproc-per-node 3 train.py --strategy ring_all_reduce    # the same algorithm over torch.distributed

mpirun -n 2 python train.py --strategy ring_all_reduce    # over MPI

python train.py --strategy ring_all_reduce --launcher dask    # on Dask's workers

python train.py --strategy yourmodule:YourClass           # a strategy of your own

python train.py --list                                    # all strategies, and what they send

python -m records.compare results/*.json                  # runs side by side

python -m records.plot results/*.json                     # scores and loss against epochs, seconds and bytes
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - older ones get one line
    sys.exit("error: Python %d.%d is too old; this needs Python 3.11 or later" % sys.version_info[:2])  # noqa: UP031

if __name__ == "__main__":
    from records.interrupts import end_while_loading, guarded, interrupts_wait

    end_while_loading("nothing was written")  # it takes seconds, in which Ctrl-C may come
    from launchers import preload, warm_up
    from launchers.sockets import remove_folder
    from records.errors import RunFailed, UsageError
    from records.known import check_names, listed

    end_while_loading("nothing was written", remove_folder)
    try:
        check_names(sys.argv[1:])
        if sys.argv[1:] == ["--list"] and listed():
            sys.exit(guarded(lambda: print(listed())))
        preload("training.preload")
        with interrupts_wait():
            warm_up()  # first: the fork server loads torch while this process does
        from training.command_line import main

        sys.exit(main(__doc__))
    except (UsageError, RunFailed) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, UsageError) else error.exit_code)
