"""``ui``: a page on this computer to set up a run with controls."""

from __future__ import annotations

from typing import Annotated

import typer

from sim.commands.app import app
from sim.spec.yaml import SpecError
from sim.terminal import messages

LOOPBACK = "127.0.0.1"


@app.command(epilog="Examples:\n  python -m sim ui\n  python -m sim ui hgx-h100 llama-3.1-8b --port 8000 --open")
def ui(
    hardware: Annotated[str | None, typer.Argument(metavar="[HW]", help="initial hardware: a YAML file or a catalog name")] = None,
    workload: Annotated[str | None, typer.Argument(metavar="[WL]", help="initial workload")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="port on this computer; 0 chooses a free one")] = 8421,
    browse: Annotated[bool, typer.Option("--open", help="open the page in the browser")] = False,
) -> None:
    """Serve a local page on which sliders set model, machine and layout."""
    try:
        import uvicorn

        from sim.ui.server import application
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn"):
            raise
        raise SpecError("ui needs starlette and uvicorn, which are not installed: pip install starlette uvicorn") from None
    import os
    import socket

    from sim.spec.library import load_hardware, load_workload
    from sim.ui.choice import Choice, query_of
    from sim.ui.view import fitting

    if hardware is not None:
        load_hardware(hardware)
    if workload is not None:
        load_workload(workload)
    try:
        listening = socket.create_server((LOOPBACK, port))
    except OSError as error:
        raise SpecError(f"--port {port}: {os.strerror(error.errno or 0)}; --port 0 chooses a free port") from None
    with listening:
        values = {name: value for name, value in (("hardware", hardware), ("workload", workload)) if value}
        query = f"?{query_of(fitting(Choice(values)))}" if values else ""
        address = f"http://{LOOPBACK}:{listening.getsockname()[1]}/{query}"
        server = uvicorn.Server(uvicorn.Config(application(), log_level="warning", timeout_graceful_shutdown=1))
        messages(f"{address} (press Ctrl+C to stop)")
        if browse:
            import webbrowser

            webbrowser.open(address)
        try:
            server.run(sockets=[listening])
        except KeyboardInterrupt:
            messages("ended")
