"""``study``: published studies in simulation."""

from __future__ import annotations

from typing import Annotated

import typer

from sim.commands.app import app
from sim.commands.help import Program
from sim.commands.options import Folder, Html, Json, Processes, Sets
from sim.spec.yaml import SpecError
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


@study.command(
    epilog="Examples:\n"
    "  python -m sim study accpar --models alexnet,vgg16\n"
    "  python -m sim study accpar 256x-tpu-v2-v3 --global-batch 1024 -o accpar"
)
def accpar(
    hardware: Annotated[str | None, typer.Argument(metavar="[HW]", help="groups of boards; by default 128 of TPU v2 and 128 of v3")] = None,
    models: Annotated[str | None, typer.Option(metavar="NAME,...", help="CNNs: chains of layers, and torchvision's ResNets")] = None,
    batch: Annotated[int | None, typer.Option("--global-batch", min=1, help="samples of a step, of all boards; by default 512")] = None,
    sets: Sets = [],  # noqa: B006
    processes: Processes = None,
    as_json: Json = False,
    output: Folder = None,
    html: Html = None,
) -> None:
    """Split tensors over unlike accelerators as AccPar (HPCA 2020) did, against data parallelism, one weird trick and HyPar."""
    from sim.report.accpar import accpar_document, accpar_text
    from sim.report.figures import figures_csv
    from sim.report.page.accpar import accpar_page
    from sim.study.accpar.study import BATCH, HARDWARE, MODELS, accpar_study

    names = [name.strip() for name in models.split(",") if name.strip()] if models is not None else list(MODELS)
    if not names:
        raise SpecError(f"--models {models or repr('')}: write names of models, for example alexnet,vgg16")
    made = accpar_study(hardware or HARDWARE, names, batch or BATCH, sets, processes, talk.counting("cases"))
    talk.progress("")
    document = accpar_document(made)
    text = accpar_text(document)
    write_result(output, html, "accpar", (document, text), accpar_page, None, {"speedups.csv": figures_csv(document["rows"])})
    print_json(document) if as_json else show_text(text)
