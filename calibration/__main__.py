"""What does ``python -m calibration`` start? The command line of ``calibration.cli``."""

import sys

from calibration.cli import main

if __name__ == "__main__":
    sys.exit(main())
