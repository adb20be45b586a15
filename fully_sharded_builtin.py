"""The baseline of fully_sharded: torch's fully_shard (FSDP2), with the options of train.py.

python fully_sharded_builtin.py --n_gpus 4

The options: python fully_sharded_builtin.py --help. The same as `python -m gradwire fully_sharded_builtin`.
"""

import sys

if __name__ == "__main__":
    from gradwire.command import main

    sys.exit(main(["fully_sharded_builtin", *sys.argv[1:]]))
