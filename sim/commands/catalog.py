"""``list``, ``show`` and ``schema``: the catalog, the layers of its workloads, and the schemas of its files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sim.commands import names
from sim.commands.app import app
from sim.commands.options import Folder, JsonOption, Sets
from sim.report.files import folder_due
from sim.spec.yaml import SpecError
from sim.terminal import json_text, messages, named_as_called, print_json, show_text

KINDS = ("hardware", "workloads", "jobs", "gpus", "models", "datasets", "stacks", "links", "cpus", "volumes", "transports")

Where = Annotated[
    list[str],
    typer.Option("--where", metavar="COND", help="only rows that match, such as gpus=8 or provider=aws,gcp; repeatable"),
]


@app.command(
    "list",
    epilog="Examples:\n  python -m sim list hardware --where provider=aws --where gpus=8\n  python -m sim list gpus",
)
def list_(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="[KIND]",
            help=", ".join(KINDS),
            autocompletion=names.complete_words(*KINDS),
        ),
    ] = "",
    where: Where = [],
    as_json: JsonOption = False,
) -> None:
    """Show the catalog: hardware and workloads, or one kind of entry."""
    from sim.report.listing import listing

    listed = listing(kind, where)
    for problem in listed.problems:
        typer.echo(named_as_called(problem), err=True)
    if listed.empty:
        messages(listed.empty)
    print_json(listed.rows) if as_json else show_text(listed.text)
    if listed.empty:
        raise typer.Exit(1)


@app.command(epilog="Examples:\n  python -m sim schema -o schemas\n  python -m sim schema > all.json")
def schema(
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="DIR", callback=folder_due, help="write one file per kind to this folder")
    ] = None,
) -> None:
    """Write JSON schemas of all kinds of descriptions, for editors."""
    from sim.spec.json_schema import json_schemas, write_schemas

    if output is None:
        print_json(json_schemas())
    else:
        write_schemas(output)
        messages(f"wrote {len(json_schemas())} schemas to {output}")


@app.command(
    epilog="Examples:\n  python -m sim show vgg16 --hardware p3.16xlarge\n  python -m sim show vgg16 resnet50 --hardware p3.16xlarge"
)
def show(
    workloads: Annotated[
        list[str],
        typer.Argument(metavar="WL...", help="one workload: its layers; several: layers against gradients", autocompletion=names.workloads),
    ],
    hardware: Annotated[
        str | None,
        typer.Option(
            metavar="HW", help="machine whose GPU gives the times; several workloads use all its GPUs", autocompletion=names.hardware
        ),
    ] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="samples per GPU")] = None,
    every: Annotated[bool, typer.Option("--layers", help="list every layer instead of blocks")] = False,
    sets: Sets = [],
    as_json: JsonOption = False,
    output: Folder = None,
) -> None:
    """Show which layers hold a model's FLOP, parameters, activations and time."""
    from sim.report import layers
    from sim.spec.catalog import locate
    from sim.study.show import compare_with_gradients, layer_document, match_workloads

    names = match_workloads(workloads)
    if len(names) > 1 and hardware is None:
        for name in names:
            locate(name, "workloads")  # a name that is wrong is told before what is missing
        raise SpecError(f"{len(names)} workloads are compared by their gradient stalls on a machine; write --hardware HW")
    if len(names) > 1 and hardware is not None:
        document = compare_with_gradients(names, hardware, sets, batch)
        text, plot = layers.stall_by_gradients_text(document), layers.stall_by_gradients_plot
    else:
        document = layer_document(names[0], hardware, sets, batch)
        text, plot = layers.layers_text(document, every), layers.layers_plot
    print_json(document) if as_json else show_text(text)
    if output is not None:
        from sim.spec.whole_file import write_files

        write_files(output, {"show.json": json_text(document), "show.txt": named_as_called(text) + "\n", **plot(document).files("show")})
        messages(f"wrote {output}/show.json, show.txt, show.png and show.svg")
