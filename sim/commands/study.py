"""``study``: published studies in simulation."""

from __future__ import annotations

from sim.commands.app import app
from sim.commands.help import Program
from sim.commands.options import Folder, Html, Json, Processes
from sim.terminal import print_json, show_text, talk, write_result

study = Program(help="Regenerate a published study in simulation.")
app.add_typer(study, name="study")


@study.callback()
def _study() -> None:
    """Regenerate a published study in simulation."""


@study.command(epilog="Examples:\n  python -m sim study stash2022 -o stash2022\n  python -m sim study stash2022 --html stash2022.html")
def stash2022(processes: Processes = None, as_json: Json = False, output: Folder = None, html: Html = None) -> None:
    """Characterise Amazon's P2 and P3 instances as Stash (arXiv 2208.14344) did: which published findings reappear."""
    from sim.report.figures import figures_csv
    from sim.report.page.stash2022 import study_page
    from sim.report.stash2022 import cost_rows, study_document, study_text
    from sim.report.stash2022_plots import study_plots
    from sim.study.stash2022 import read_for
    from sim.study.stash2022 import stash2022 as studied

    found = studied(processes, talk.counting("cases"))
    talk.progress("")
    document, text = study_document(found), study_text(found)
    tables = {"stalls.csv": document["rows"], "layers.csv": document["micro"], "costs.csv": cost_rows(found)}
    more = {name: figures_csv(rows) for name, rows in tables.items()} | study_plots(found) if output is not None else {}
    write_result(output, html, "stash2022", (document, text), lambda whole: study_page(whole, read_for(found)), more=more)
    print_json(document) if as_json else show_text(text)
