"""``extract``: the layer table of a torch model."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from sim.commands.app import app
from sim.report.files import yaml_due
from sim.spec.yaml import SpecError
from sim.terminal import messages, name_in_file


@app.command(
    epilog="Examples:\n"
    "  python -m sim extract torchvision.models:vgg16 --input 3x224x224 -o vgg16.yaml\n"
    "  python -m sim extract my_model.py:build --input 3x256x256 --arg width=64 -o my-model.yaml"
)
def extract(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:CALLABLE",
            help="callable that returns the torch model (its code runs), or a .pt2 file; use only files you trust",
        ),
    ],
    inputs: Annotated[
        list[str],
        typer.Option(
            "--input",
            metavar="SHAPE",
            help="one input without the batch dimension: 3x224x224, input_ids=384:int64, or t=scalar:int64; repeatable",
        ),
    ] = [],
    example: Annotated[str | None, typer.Option(metavar="MODULE:FUNCTION", help="returns the inputs for a given batch size")] = None,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", callback=yaml_due, help="file for the layer table")] = Path(
        "model.yaml"
    ),
    name: Annotated[str | None, typer.Option(help="name of the model; the file name by default")] = None,
    arguments: Annotated[list[str], typer.Option("--arg", metavar="K=V", help="argument of the callable; repeatable")] = [],
    force: Annotated[bool, typer.Option("--force", help="replace an existing file")] = False,
) -> None:
    """Write the layer table of a torch model, traced on the meta device without weights or a GPU.

    The module and the callable run as code, and torch evaluates expressions in a .pt2 file: extract only files that you trust. A .pt2 file
    that contains pickles or compiled code is rejected.
    """
    from sim.extract import run_extract
    from sim.extract.samples import dataset_like

    if example and inputs:
        raise SpecError("--input and --example: write one of the two")
    if output.exists() and not force:
        raise SpecError(f"{output}: already exists; write another name, or overwrite it with --force")
    messages.progress("importing torch and tracing two steps; most models take 10 to 30 s")
    model = run_extract(target, [f"@{example}"] if example else inputs, output, name, arguments)
    messages.progress("")
    name_in_file(output)
    messages(f"wrote {output}: {len(model.layers)} layers, {model.parameters:,} parameters")
    messages(
        f"next: python -m sim run p4d.24xlarge {shlex.quote(str(output))} --batch 16 --precision amp_bf16\n"
        "to set its data set and optimizer too, write a workload that uses it, such as this file of four lines:\n"
        f"  name: my-job\n  model: {output}\n  dataset: {{extends: {dataset_like(inputs, model)}, samples: 20000}}\n"
        "  training: {batch: 16, precision: amp_bf16, optimizer: {name: adam}}"
    )
    if target.startswith("transformers:") and not arguments:
        messages(
            "the class was built with its default configuration; set the sizes of your model with --arg, such as --arg num_hidden_layers=24"
        )
