"""What does ``sim study accpar`` do? Its options and output files."""

from __future__ import annotations

from typing import Annotated

import typer

from sim.commands.options import Folder, HtmlOption, JsonOption, Processes, Sets
from sim.spec.yaml import SpecError
from sim.terminal import messages, print_json, show_text, write_result


class AccPar:
    """The subcommand of `sim study`."""

    name = "accpar"
    examples = (
        "python -m sim study accpar --models alexnet,vgg16",
        "python -m sim study accpar 256x-tpu-v2-v3 --global-batch 1024 -o accpar",
    )

    @staticmethod
    def run(
        hardware: Annotated[
            str | None, typer.Argument(metavar="[HW]", help="groups of boards; default: 128 of TPU v2 and 128 of TPU v3")
        ] = None,
        models: Annotated[str | None, typer.Option(metavar="NAME,...", help="CNNs: chains of layers, or torchvision's ResNets")] = None,
        batch: Annotated[int | None, typer.Option("--global-batch", min=1, help="samples per step over all boards; default: 512")] = None,
        sets: Sets = [],
        processes: Processes = None,
        as_json: JsonOption = False,
        output: Folder = None,
        html: HtmlOption = None,
    ) -> None:
        """Split tensors over different accelerators as AccPar (HPCA 2020); compare with data parallelism, one weird trick and HyPar."""
        from calibration.studies.accpar.document import accpar_document, accpar_text
        from calibration.studies.accpar.page import accpar_page
        from calibration.studies.accpar.study import BATCH, HARDWARE, MODELS, accpar_study
        from sim.report.figures import figures_csv

        names = [name.strip() for name in models.split(",") if name.strip()] if models is not None else list(MODELS)
        if not names:
            raise SpecError(f"--models {models or repr('')}: write model names, for example alexnet,vgg16")
        study = accpar_study(hardware or HARDWARE, names, batch or BATCH, sets, processes, messages.counter("cases"))
        messages.progress("")
        document = accpar_document(study)
        text = accpar_text(document)
        write_result(output, html, "accpar", (document, text), accpar_page, None, {"speedups.csv": figures_csv(document["rows"])})
        print_json(document) if as_json else show_text(text)
