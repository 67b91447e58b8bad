"""``new``: write the description of a machine or a workload from answers, a name or a model."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

import typer

from sim.commands import names
from sim.commands.app import app
from sim.commands.help import Command, write_examples
from sim.commands.options import takes_options
from sim.report.files import yaml_due
from sim.spec.yaml import SpecError
from sim.study.options import SampleOptions
from sim.terminal import messages, name_in_file

if TYPE_CHECKING:
    from sim.study.new.workload import NewWorkload


OPTIONS: Final = {
    "hardware": ("--from-topo", "--gpu", "--cpu", "--nic-bandwidth", "--transport", "--memory"),
    "workload": ("--from", "--batch", "--dataset", "--sequence", "--input", "--example", "--arg"),
}
"""The options that apply to one kind of description only."""


_SUMMARIES: Final = {
    "hardware": "Write a hardware description from a machine's links.",
    "workload": "Write a workload from a model's configuration, launch files or a torch model.",
}


class NewCommand(Command):
    """``new``, whose help shows the options of the kind that is typed before --help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse *args*, and keep the kind for the help."""
        ctx.meta["kind"] = args[0] if args else ""
        return super().parse_args(ctx, args)

    def options_of_other_kind(self, ctx: Any) -> tuple[str, ...]:
        """Return the options that the help leaves out."""
        kind = ctx.meta.get("kind")
        return tuple(option for other, own in OPTIONS.items() if kind in OPTIONS and other != kind for option in own)

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write what the command does with the kind, or with both."""
        kind = ctx.meta.get("kind")
        if kind not in OPTIONS:
            super().format_help_text(ctx, formatter)
            return
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(_SUMMARIES[kind])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples of the kind."""
        title, *examples = str(self.epilog).splitlines()
        kind = ctx.meta.get("kind")
        of_kind = [text for text in examples if kind not in OPTIONS or ("new workload" in text) == (kind == "workload")]
        write_examples("\n".join([title, *of_kind]), formatter)


@app.command(
    cls=NewCommand,
    epilog="Examples:\n"
    "  nvidia-smi topo -m > topo.txt; python -m sim new --from-topo topo.txt -o my-box.yaml --gpu V100-SXM2-16GB\n"
    "  python -m sim new workload config.json ds_config.json -o mine.yaml",
)
@takes_options
def new(
    options: SampleOptions,
    what: Annotated[Literal["hardware", "workload"], typer.Argument(metavar="hardware|workload", help="what to describe")] = "hardware",
    files: Annotated[list[str] | None, typer.Argument(metavar="FILE|DIR|ID", help="models and launch files: the same as --from")] = None,
    topo: Annotated[
        Path | None, typer.Option("--from-topo", metavar="FILE", help="output of nvidia-smi topo -m, or NCCL's topology XML")
    ] = None,
    sources: Annotated[
        list[str],
        typer.Option(
            "--from",
            metavar="FILE|DIR|ID",
            help="a model's config.json, its folder or hub id, or a catalog name; torchtitan TOML, DeepSpeed JSON, Accelerate "
            "YAML; a Slurm script, or a torchrun, accelerate, deepspeed or Megatron-LM command line, in a file or in quotes; repeatable. "
            "Or a torch model, such as net.py:Net (its code runs). Without --from, it asks questions",
        ),
    ] = [],
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", callback=yaml_due, help="file for the YAML")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="samples per GPU")] = None,
    dataset: Annotated[
        str | None,
        typer.Option(help="a data set of the catalog, or a file", autocompletion=names.complete_folders("workloads/datasets")),
    ] = None,
    inputs: Annotated[
        list[str],
        typer.Option("--input", metavar="SHAPE", help="torch model: one input without the batch dimension, as for 'extract'; repeatable"),
    ] = [],
    example: Annotated[
        str | None, typer.Option(metavar="MODULE:FUNCTION", help="torch model: returns the inputs for a given batch size")
    ] = None,
    arguments: Annotated[list[str], typer.Option("--arg", metavar="K=V", help="torch model: argument of the callable; repeatable")] = [],
    name: Annotated[str | None, typer.Option(help="name of the machine or workload; the file name by default")] = None,
    gpu: Annotated[str | None, typer.Option(help="GPU of the catalog, if the file does not name it", autocompletion=names.gpus)] = None,
    cpu: Annotated[str | None, typer.Option(help="processor of the catalog", autocompletion=names.cpus)] = None,
    nic_bandwidth: Annotated[str | None, typer.Option(metavar="RATE", help="bandwidth of one NIC, for example '200 Gbps'")] = None,
    transport: Annotated[str | None, typer.Option(help="transport class of the NIC: tcp, infiniband, roce, efa")] = None,
    memory: Annotated[str | None, typer.Option(metavar="SIZE", help="DRAM of the machine, for example '1 TiB'")] = None,
    force: Annotated[bool, typer.Option("--force", help="replace an existing file")] = False,
) -> None:
    """Write a hardware description from a machine's links, or a workload from a model's configuration.

    Options under Machine describe hardware, those under Job (except --name) a workload; `new workload --help` shows only the latter.
    """
    if example and inputs:
        raise SpecError("--input and --example: write one of the two")
    values = {
        "hardware": (topo, gpu, cpu, nic_bandwidth, transport, memory),
        "workload": (sources, batch, dataset, options["sequence"], inputs, example, arguments),
    }
    for kind, own in OPTIONS.items():
        for option, value in zip(own, values[kind], strict=True):
            if value and kind != what:
                raise SpecError(f"{option}: does not apply to new {what}; leave it out")
    if what == "workload":
        input_texts = [f"@{example}"] if example else inputs
        _new_workload([*(files or []), *sources], output, name, options["sequence"], force, batch, dataset, _Traced(input_texts, arguments))
        return
    if files:
        raise SpecError(f"new {what} {files[0]}: a machine is described by its links; write --from-topo FILE")
    if topo is not None and output is None:
        raise SpecError(f"--from-topo {topo}: set the file for the description, such as -o {topo.stem or 'my-box'}.yaml")
    if topo is None or output is None:
        raise SpecError(
            "new: write --from-topo FILE (of 'nvidia-smi topo -m') and -o FILE for a machine, or 'python -m sim new workload config.json "
            "-o mine.yaml' for a model; for a machine similar to one of the catalog, write a file with 'extends: p4d.24xlarge' and the "
            "differences"
        )
    from sim.study.new.hardware import assumed_lines, new_hardware

    made = new_hardware(topo, output, name, gpu, cpu=cpu, nic_bandwidth=nic_bandwidth, transport=transport, memory=memory, overwrite=force)
    name_in_file(output)
    messages(f"wrote {output}{f': {made.note}' if made.note else ''}")
    if assumed := assumed_lines(output):
        messages(f"edit what is assumed, because {topo} does not show it: {'; '.join(assumed)}")


class _Traced(NamedTuple):
    """What to trace a torch model with: its inputs and the arguments of its callable, as typed."""

    inputs: list[str]
    arguments: list[str]


def _new_workload(
    sources: list[str],
    output: Path | None,
    name: str | None,
    sequence: int | None,
    force: bool,
    batch: int | None,
    dataset: str | None,
    traced: _Traced,
) -> None:
    from sim.study.new.traced import is_torch
    from sim.study.new.workload import by_questions, new_workload, write

    torch = next((source for source in sources if is_torch(source) or (any(traced) and source.endswith(".py"))), None)
    if torch is not None:
        if len(sources) > 1:
            others = ", ".join(each for each in sources if each != torch)
            raise SpecError(f"{torch}: a torch model cannot be combined with other sources; leave out {others}")
        if sequence is not None:
            raise SpecError(
                f"--sequence {sequence}: a torch model is traced with its inputs; write --input, such as input_ids={sequence}:int64"
            )
        result = _trace(torch, output, name, force, batch, dataset, traced)
    elif any(traced):
        raise SpecError(
            "--input, --example and --arg: apply only to a torch model; write --from with a callable that returns it, such as net.py:Net"
        )
    elif sources:
        result = new_workload(sources, output, name, sequence, force, batch, dataset)
    elif sys.stdin.isatty():
        answers = by_questions(
            lambda question, default: str(typer.prompt(question, default=default, show_default=bool(default))),
            lambda error: typer.echo(str(error), err=True),
        )
        name = name or typer.prompt("name", default=answers.model or "my-model")
        result = write(answers, name, output, sequence, "answers", overwrite=force)
    else:
        raise SpecError(
            "new workload: write a config.json, its folder, a hub id, a catalog name or launch files, such as "
            "'python -m sim new workload config.json -o mine.yaml'; without any, it asks questions on a terminal"
        )
    name_in_file(result.path)
    messages("\n".join([f"wrote {result.path}: {result.note}", *(f"note: {note}" for note in result.left_out), f"next: {result.command}"]))


def _trace(
    source: str, output: Path | None, name: str | None, force: bool, batch: int | None, dataset: str | None, traced: _Traced
) -> NewWorkload:
    """Write the workload of the torch model that *source* returns."""
    from sim.extract import extract
    from sim.extract.samples import dataset_like, tokens_of
    from sim.extract.table import render
    from sim.extract.target import parse_arguments
    from sim.study.new.traced import BATCH, place_of_traced, write_traced

    name, path = place_of_traced(source, output, name, dataset, force)
    words = [word for text in traced.inputs for word in (("--example", text[1:]) if text.startswith("@") else ("--input", text))]
    words += [word for text in traced.arguments for word in ("--arg", text)]
    given = {"--batch": batch, "--dataset": dataset, "--name": name if name != path.stem else None}
    words += [word for option, value in given.items() if value is not None for word in (option, str(value))]
    command = shlex.join(["python", "-m", "sim", "new", "workload", source, *words, "-o", path.as_posix()])
    messages.progress("importing torch and tracing two steps; most models take 10 to 30 s")
    table = extract(source, traced.inputs, name, parse_arguments(traced.arguments), command)
    messages.progress("")
    tokens = tokens_of(traced.inputs, table)
    return write_traced(table, render(table), source, dataset or dataset_like(traced.inputs, table), path, batch or BATCH, tokens)
