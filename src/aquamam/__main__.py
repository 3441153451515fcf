"""`python -m aquamam` is the same as `aquamam`."""

import sys

from aquamam.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
