"""The program that commands register with, each in its file; only the file of the command that is typed is imported."""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from sim.commands.help import CommandLine

COMMANDS: Final = (
    "run", "collective", "check", "list", "schema", "show", "new", "extract", "profile", "compare", "recommend", "spot", "whatif", "plan",
    "batches", "prices", "goodput", "sweep", "share", "diff", "study", "ui",
)  # fmt: skip
_OF_CATALOGUE: Final = ("list", "schema", "show")
"""Commands of one file."""

app = CommandLine(
    {
        "One job": "run ui whatif profile collective show goodput spot",
        "Choose": "compare recommend plan batches prices",
        "Many runs": "sweep share diff study",
        "Descriptions": "list check new extract schema",
    },
    {name: f"sim.commands.{'catalogue' if name in _OF_CATALOGUE else name}" for name in COMMANDS},
    name="stallsim",
    help="Predict how a training job will run on a machine, and where its time goes, before any GPU is rented.",
    epilog="Examples:\n"
    "  python -m sim run p3.16xlarge vgg16\n"
    "  python -m sim recommend resnet50 p3.8xlarge p3.16xlarge --budget-hours 24 --epochs 90",
)


class Study(Protocol):
    """A study as a command of its own; docs/develop/own-study.md has one as an example."""

    @property
    def name(self) -> str:
        """What is typed after ``sim study``."""

    @property
    def examples(self) -> Sequence[str]:
        """Commands for its help, two lines."""

    @property
    def run(self) -> Callable[..., None]:
        """The command: its parameters are arguments and options, as Typer reads them, its docstring says in a line what it does."""
