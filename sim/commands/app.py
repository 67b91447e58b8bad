"""The program that commands register with, each in its own file; only the file of the requested command is imported."""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from sim.commands.help import CommandLine

COMMANDS: Final = (
    "run", "collective", "check", "list", "schema", "show", "new", "extract", "profile", "compare", "recommend", "spot", "whatif", "plan",
    "batches", "prices", "goodput", "sweep", "share", "diff", "study", "ui",
)  # fmt: skip
_OF_CATALOG: Final = ("list", "schema", "show")
"""Commands that share one file."""

app = CommandLine(
    {
        "One job": "run ui whatif profile collective show goodput spot",
        "Choose": "compare recommend plan batches prices",
        "Many runs": "sweep share diff study",
        "Descriptions": "list check new extract schema",
    },
    {name: f"sim.commands.{'catalog' if name in _OF_CATALOG else name}" for name in COMMANDS},
    name="stallsim",
    help="Predict how a training job will run on a machine, and where its time goes, before any GPU is rented.",
    epilog="Examples:\n"
    "  python -m sim run p3.16xlarge vgg16\n"
    "  python -m sim recommend p3.8xlarge p3.16xlarge resnet50 --budget-hours 24 --epochs 90",
)


class Study(Protocol):
    """A user-defined study as a command; docs/develop/own-study.md has an example."""

    @property
    def name(self) -> str:
        """The name to type after ``sim study``."""

    @property
    def examples(self) -> Sequence[str]:
        """Two example command lines for its help."""

    @property
    def run(self) -> Callable[..., None]:
        """The command: its parameters are arguments and options in Typer's notation, and its docstring is one line of help."""
