"""What does ``python -m calibration`` start? The command line in ``calibration.cli``; a rank of torchrun exits without destructors."""

import sys

from calibration.cli import main

if __name__ == "__main__":
    code = main()
    if "torch.distributed" in sys.modules and sys.modules["torch.distributed"].is_initialized():
        from calibration.measure.ddp_steps import exit_now

        exit_now(code)
    sys.exit(code)
