"""What does ``python -m sim`` start? The command line of ``sim.cli``, with the garbage collector looking less often."""

import gc
import sys

OBJECTS = 50_000
"""Made between two looks for garbage: what is imported stays, and searching it at every 700 takes a tenth of a short run."""


def main() -> int:
    """Run the command line as a process of its own and return its exit code; Ctrl-C also ends it in a word while modules are imported."""
    gc.set_threshold(OBJECTS)
    try:
        from sim.cli import main as typed
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130  # as `sim.terminal.INTERRUPTED`, which is not there yet
    return typed()


if __name__ == "__main__":
    sys.exit(main())
