"""``collective``: the time of one collective operation by message size, and its bottleneck."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from sim.commands import names
from sim.commands.app import app
from sim.commands.options import Csv, Folder, HtmlOption, Hw, JsonOption, LayoutFields, NodeCount, Sets, takes_mesh
from sim.spec.algorithms import OTHER_ALGORITHMS
from sim.spec.yaml import SpecError
from sim.terminal import show_table, write_result


@app.command(
    epilog="Examples:\n"
    "  python -m sim collective p3.16xlarge --op all_reduce --bytes 1MiB..1GiB --nodes 2\n"
    "  python -m sim collective hgx-h100 --nodes 8 --tp 8 --pp 4 --group dp --bytes 1MiB..1GiB:6"
)
@takes_mesh
def collective(
    hardware: Hw,
    op: Annotated[
        str | None,
        typer.Option(
            help="all_reduce (default; --group pp: send_recv), all_gather, reduce_scatter, broadcast, reduce, all_to_all, send_recv, "
            "gather, scatter; or parameter_server, for the bandwidth that hosts need"
        ),
    ] = None,
    sizes: Annotated[
        str, typer.Option("--bytes", metavar="SIZE|A..B[:n]", help="one size, or a range (doubling without n)")
    ] = "1MiB..1GiB",
    nodes: NodeCount = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="total number of GPUs")] = None,
    placement: Annotated[str | None, typer.Option(metavar="1+2", help="GPUs on each node, in order")] = None,
    compute_time: Annotated[
        str | None, typer.Option(metavar="TIME", help="parameter_server: compute that hides it; default: 100 ms")
    ] = None,
    algo: Annotated[
        str | None, typer.Option(metavar="NAMES", help=f"like NCCL_ALGO; also {', '.join(OTHER_ALGORITHMS)} or your own")
    ] = None,
    proto: Annotated[str | None, typer.Option(metavar="NAMES", help="like NCCL_PROTO: LL, LL128, Simple, ^LL")] = None,
    channels: Annotated[int | None, typer.Option(min=1, help="like NCCL_MAX_NCHANNELS")] = None,
    per_process: Annotated[
        int, typer.Option("-g", "--per-process", min=1, metavar="N", help="GPUs of one process, like nccl-tests -g")
    ] = 1,
    shares: Annotated[
        str | None,
        typer.Option(
            metavar="3,1,1,1",
            help="all_to_all: how each rank divides the data it sends, rank by rank; rows per sender separated by '/'",
        ),
    ] = None,
    layout: LayoutFields = (),
    group: Annotated[
        str | None,
        typer.Option(
            metavar="tp|cp|pp|ep|dp|...",
            help="all groups of a kind in a layout at once: tp, cp, pp, ep, dp (all that hold the same weights), shard, reshard, "
            "replicate, expert_data, ends (first and last stage), everyone",
            autocompletion=names.complete_words(
                "tp", "cp", "pp", "ep", "dp", "shard", "reshard", "replicate", "expert_data", "ends", "everyone"
            ),
        ),
    ] = None,
    stage: Annotated[int | None, typer.Option(min=0, help="pipeline stage of the groups of --group; 0 by default")] = None,
    nccl: Annotated[str, typer.Option(metavar="RELEASE", help="release of NCCL whose rules are used, such as 2.18.5")] = "2.30",
    sets: Sets = [],
    as_json: JsonOption = False,
    as_csv: Csv = False,
    output: Folder = None,
    html: HtmlOption = None,
) -> None:
    """Time a collective in isolation for each size, as nccl-tests does, or all groups of one kind of a layout at the same time."""
    if group is None and (layout or stage is not None):
        raise SpecError(f"{layout[0][0] if layout else '--stage'}: needs --group, the groups of the collective, such as --group dp")
    if op == "parameter_server":
        if group is not None:
            raise SpecError("--op parameter_server does not support --group; leave it out")
        if gpus is not None or placement is not None:
            raise SpecError("--op parameter_server takes hosts, not GPUs; write --nodes N")
        if algo or proto or channels or per_process > 1 or shares:
            raise SpecError("--op parameter_server does not support NCCL options; leave --algo, --proto, --channels and -g out")
        return _server_bound(hardware, sizes, compute_time or "100 ms", nodes, sets, (as_json, as_csv), output, html)
    from sim.report.collective import collective_document, collective_plot, collective_text, fabric_files
    from sim.report.figures import figures_csv
    from sim.report.page.collective import collective_page
    from sim.study.collective import collective_table, sizes_of
    from sim.study.descriptions import Descriptions
    from sim.study.group_collective import GroupQuestion, group_table
    from sim.study.nccl_names import nccl_variables_named
    from sim.training.collectives.price.collective_plan import Tuning

    if compute_time:
        raise SpecError(f"--compute-time {compute_time}: applies only to --op parameter_server; leave it out")
    tuning = Tuning(nccl, algo, proto, channels)
    if group is not None and (per_process > 1 or shares):
        raise SpecError("--group: each rank is one process, with equal shares; leave -g and --shares out")
    with nccl_variables_named("--algo", "--proto"):
        if group is not None:
            question = GroupQuestion(group, layout, stage or 0)
            table = group_table(
                hardware, op, sizes_of(sizes), question, nodes=nodes, gpus=gpus, placement=placement, tuning=tuning, overrides=sets
            )
        else:
            table = collective_table(
                hardware, "all_reduce" if op is None else op, sizes_of(sizes), nodes=nodes, gpus=gpus, placement=placement, tuning=tuning,
                overrides=sets, per_process=per_process, shares=shares,
            )  # fmt: skip
    document, text = collective_document(table), collective_text(table)
    rows = figures_csv(document["rows"])
    extra_files: dict[str, str | bytes] = {"collective.csv": rows, **fabric_files(table)} if output is not None else {}
    page = partial(collective_page, descriptions=Descriptions([table.machine] if table.machine else [], []))
    write_result(output, html, "collective", (document, text), page, lambda _: collective_plot(table), extra_files)
    show_table(document, text, rows, as_json, as_csv)


def _server_bound(
    hardware: str, sizes: str, compute_time: str, nodes: int | None, sets: Sequence[str], shown: tuple[bool, bool],
    output: Path | None, html: Path | None,
) -> None:  # fmt: skip
    from sim.report.figures import figures_csv
    from sim.report.page.server_bound import bound_page
    from sim.report.server_bound import bound_document, bound_rows, bound_text
    from sim.study.collective import sizes_of
    from sim.study.descriptions import Descriptions
    from sim.study.server_bound import bound_table

    table = bound_table(hardware, sizes_of(sizes), compute_time, nodes=nodes, overrides=sets)
    document, text = bound_document(table), bound_text(table)
    rows = figures_csv(bound_rows(document))
    page = partial(bound_page, descriptions=Descriptions([table.machine], []))
    write_result(output, html, "collective", (document, text), page, more_files={"collective.csv": rows})
    show_table(document, text, rows, *shown)
