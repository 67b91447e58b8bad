"""``diff``: what differs between two results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sim.commands.app import app
from sim.commands.options import Folder, HtmlOption, JsonOption
from sim.terminal import print_json, show_text, write_result


@app.command(epilog="Examples:\n  python -m sim diff before.json after.json\n  python -m sim diff before after --html changes.html")
def diff(
    before: Annotated[Path, typer.Argument(metavar="A", help="document of a run (A.json), or the folder that `run -o` wrote")],
    after: Annotated[Path, typer.Argument(metavar="B", help="the same for another run")],
    as_json: JsonOption = False,
    output: Folder = None,
    html: HtmlOption = None,
) -> None:
    """Show how the results of two runs differ, and which stall causes changed."""
    from sim.report.difference import difference, difference_text, read_document
    from sim.report.page.difference import difference_page

    old, new = read_document(before), read_document(after)
    document = difference(old, new)
    text = difference_text(document, old, new)
    write_result(output, html, "diff", (document, text), lambda shown: difference_page(shown, old, new))
    print_json(document) if as_json else show_text(text)
