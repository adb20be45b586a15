"""Train on a cluster in virtual time: the same strategies, on machines and a network that are numbers.

python simulate.py --strategy async_param_server --n_gpus 16 --bandwidth 1gbit --latency 50us

python simulate.py --script train_ddp.py --n_gpus 16 --bandwidth 1gbit --compute 20ms    # a script of yours

The options, and more commands: python simulate.py --help. The same as `python -m gradwire simulate`.
"""

import sys

if __name__ == "__main__":
    from gradwire.command import main

    sys.exit(main(["simulate", *sys.argv[1:]]))
