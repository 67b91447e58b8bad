"""What does ``python -m sim`` start? The command line of ``sim.cli``, with the garbage collector looking less often."""

import gc
import os
import sys

OBJECTS = 1_000_000
"""Made between two looks for garbage: most commands make fewer. Searching at every 700 takes a tenth of a run's time, as most of them stay;
at every 200,000 it takes a seventh of a plan's."""

NOT_INSTALLED = (
    "{python} has no package {missing}: stallsim is not installed there; after 'make run' in the checkout write '. .venv/bin/activate' "
    "once in each terminal, or 'pip install .' for this Python"
)
"""What to do where another Python is asked than the one that the program was installed for."""


def main() -> int:
    """Run the command line as a process of its own and return its exit code; Ctrl-C also ends it in a word while modules are imported."""
    gc.set_threshold(OBJECTS)
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # looking for some reads the metadata of every installed package
    try:
        from sim.cli import main as typed
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130  # as `sim.terminal.INTERRUPTED`, which is not there yet
    except ModuleNotFoundError as error:
        if (error.name or "sim").partition(".")[0] == "sim" or "--debug" in sys.argv:
            raise
        print(NOT_INSTALLED.format(python=sys.executable, missing=error.name), file=sys.stderr)
        return 2
    code = typed()
    gc.freeze()  # else the interpreter searches all objects for garbage once more as it ends: a fifth of a short run
    return code


if __name__ == "__main__":
    sys.exit(main())
