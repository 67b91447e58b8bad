"""What does ``python -m sim`` start? The command line of ``sim.cli``, with garbage collection running less often."""

import gc
import os
import sys

OBJECTS = 1_000_000
"""Object allocations between two garbage collections; most commands allocate fewer. Most objects survive, so that collecting every 700
allocations takes a tenth of the time of a run, and collecting every 200,000 a seventh of the time of a plan."""

NOT_INSTALLED = (
    "{python} has no package {missing}, so stallsim is not installed for it; run '. .venv/bin/activate' in each terminal (after 'make run' "
    "in the checkout), or 'pip install .' with this Python"
)
"""What to do if the program was started by a Python other than the one it is installed for."""


def main() -> int:
    """Run the command line as its own process and return its exit code; Ctrl-C during imports also ends it without a traceback."""
    gc.set_threshold(OBJECTS)
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # searching for plugins reads the metadata of every installed package
    try:
        from sim.cli import main as typed
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130  # equal to `sim.terminal.INTERRUPTED`, which may not be imported yet
    except ModuleNotFoundError as error:
        if (error.name or "sim").partition(".")[0] == "sim" or "--debug" in sys.argv:
            raise
        print(NOT_INSTALLED.format(python=sys.executable, missing=error.name), file=sys.stderr)
        return 2
    code = typed()
    gc.freeze()  # otherwise the interpreter runs one more full collection at exit: a fifth of the time of a short run
    return code


if __name__ == "__main__":
    sys.exit(main())
