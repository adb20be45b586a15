"""`python -m gradwire COMMAND ...`: the command `gradwire` where it is not installed."""

import sys

if __name__ == "__main__":
    from gradwire.command import main

    sys.exit(main())
