"""What does ``python -m sim`` start? The command line of ``sim.cli``."""

import sys

from sim.cli import main

if __name__ == "__main__":
    sys.exit(main())
