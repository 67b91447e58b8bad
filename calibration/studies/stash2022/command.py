"""What does ``sim study stash2022`` do? Its options and output files."""

from __future__ import annotations

from sim.commands.options import Folder, HtmlOption, JsonOption, Processes
from sim.terminal import messages, print_json, show_text, write_result


class Stash2022:
    """The subcommand of `sim study`."""

    name = "stash2022"
    examples = ("python -m sim study stash2022 -o stash2022", "python -m sim study stash2022 --html stash2022.html")

    @staticmethod
    def run(processes: Processes = None, as_json: JsonOption = False, output: Folder = None, html: HtmlOption = None) -> None:
        """Characterize Amazon's P2 and P3 instances as Stash (arXiv 2208.14344) did, and report which published findings reappear."""
        from calibration.studies.stash2022.document import cost_rows, study_document, study_text
        from calibration.studies.stash2022.page import study_page
        from calibration.studies.stash2022.plots import study_plots
        from calibration.studies.stash2022.study import stash2022, study_inputs
        from sim.report.figures import figures_csv

        study = stash2022(processes, messages.counter("cases"))
        messages.progress("")
        document, text = study_document(study), study_text(study)
        tables = {"stalls.csv": document["rows"], "layers.csv": document["micro"], "costs.csv": cost_rows(study)}
        more = {name: figures_csv(rows) for name, rows in tables.items()} | study_plots(study) if output is not None else {}
        write_result(
            output, html, "stash2022", (document, text), lambda document: study_page(document, study_inputs(study)), more_files=more
        )
        print_json(document) if as_json else show_text(text)
