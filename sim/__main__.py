"""What does ``python -m sim`` start? The command line of ``sim.cli``."""

import sys


def main() -> int:
    """Run the command line and return its exit code; Ctrl-C also ends it in a word while modules are still imported."""
    try:
        from sim.cli import main as start
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130  # as `sim.terminal.INTERRUPTED`, which is not there yet
    return start()


if __name__ == "__main__":
    sys.exit(main())
