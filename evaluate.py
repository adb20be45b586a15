"""Score the checkpoints of a training run as they appear, beside it, in a process of its own.

python evaluate.py --checkpoint_dir kept

The options, and more commands: python evaluate.py --help. The same as `python -m gradwire evaluate`.
"""

import sys

if __name__ == "__main__":
    from gradwire.command import main

    sys.exit(main(["evaluate", *sys.argv[1:]]))
