"""The program that commands of ``python -m calibration`` register with; only the file of the requested command is imported.

A command parses its options, calls one function and prints the result. Exit codes: 0 ok; 1 ran, but a condition failed; 2 wrong usage or
bad input; 130 interrupted.
"""

from pathlib import Path
from typing import Annotated, Final

import typer

from sim.commands.help import CommandLine
from sim.report.files import folder_there

MEASURE: Final = "profile lab fit import-trace"
CHECK: Final = "blind records collectives kernels servers longrun energy"

app = CommandLine(
    {"Measure": MEASURE, "Check predictions": f"validate {CHECK}"},
    {
        **dict.fromkeys(MEASURE.split(), "calibration.commands.measure"),
        **dict.fromkeys(CHECK.split(), "calibration.commands.check"),
        "validate": "calibration.commands.validate",
    },
    name="stallsim-calibrate",
    help="Measure machines, fit the simulator's parameters, and check its predictions against measurements.",
    epilog="Examples:\n"
    "  python -m calibration profile -o my-machine.json\n"
    "  python -m calibration validate my-runs.csv --hardware-dir my-machines",
)

HardwareDir = Annotated[
    Path | None,
    typer.Option("--hardware-dir", metavar="DIR", callback=folder_there, help="folder of your own hardware files, searched first"),
]
WorkloadDir = Annotated[
    Path | None,
    typer.Option("--workload-dir", metavar="DIR", callback=folder_there, help="folder of your own workloads, models and stacks"),
]
