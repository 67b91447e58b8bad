"""``study``: published studies in simulation, each provided by a package (entry point group ``stallsim.studies``)."""

from __future__ import annotations

from typing import cast

from sim.commands.app import Study, app
from sim.commands.help import CommandLine
from sim.spec.extensions import STUDIES, extension, names

study = CommandLine(help="Regenerate a published study in simulation.")
app.add_typer(study, name="study")


@study.callback()
def _study() -> None:
    """Regenerate a published study in simulation."""


for _name in names(STUDIES):
    _command = cast(Study, extension(STUDIES, _name))
    _examples = "\n".join(f"  {line}" for line in _command.examples)
    study.command(_name, epilog=f"Examples:\n{_examples}")(_command.run)
