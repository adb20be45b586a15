"""Run a small case in all orders of its messages: what holds in all, or the shortest order in which it does not.

python explore.py --strategy async_param_server --n_gpus 3 --steps 6

The options, and more commands: python explore.py --help. The same as `python -m gradwire explore`.
"""

import sys

if __name__ == "__main__":
    from gradwire.command import main

    sys.exit(main(["explore", *sys.argv[1:]]))
