"""The baseline of param_server: torch.nn.DataParallel, with the options of train.py.

python param_server_builtin.py --n_gpus 4

The options: python param_server_builtin.py --help. The same as `python -m gradwire param_server_builtin`.
"""

import sys

if __name__ == "__main__":
    from gradwire.command import main

    sys.exit(main(["param_server_builtin", *sys.argv[1:]]))
