"""Starts the command line as `python -m graphkiln.cli`."""

import sys

from graphkiln.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
