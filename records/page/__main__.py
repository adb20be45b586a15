"""Write a page that steps through a finished run: see `records.page`."""

import sys

from records.page import main

if __name__ == "__main__":
    sys.exit(main())
