"""How does the page reach the simulator? Through a stateless local web application: routes for page, view, machines and files.

It only answers requests to this computer (`TrustedHostMiddleware`), and only requests from the page itself reach the simulator. If a
client disconnects, its request and the computation for it are canceled.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from sim.spec.listing import hardware_rows, workload_rows
from sim.spec.yaml import SpecError
from sim.study.pool import cores
from sim.terminal import named_as_called
from sim.ui.choice import AMONG, Choice, choice_of
from sim.ui.machines import KeptResults, WorkMessage, machine_views, machines_of
from sim.ui.page import control_page
from sim.ui.work import Worker, cache_name

HOSTS: Final = ("localhost", "127.0.0.1")
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
"""Headers of every response; with them, a browser loads nothing from other sites for this page."""
_TEAM: Final = 4
"""Maximum number of processes for the machines: a front takes a dozen simulations, and each process reads all descriptions."""
_DISCONNECTED: Final = 499
"""Status of the response if the client has disconnected."""


def application() -> Starlette:
    """Return the web application; its worker processes end with it."""
    local = _Local()
    routes = [
        Route("/", local.page),
        Route("/view", local.view),
        Route("/machines", local.machines),
        Route("/file/{name}", local.file),
    ]
    return Starlette(routes=routes, middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=list(HOSTS))], lifespan=local.life)


class _Local:
    """The handlers of requests, with the processes that compute: one for the run, several for the machines."""

    def __init__(self) -> None:
        self.run, self.team = Worker(), [Worker() for _ in range(min(cores(), _TEAM))]
        for worker in (self.run, *self.team):
            worker.start_soon()
        self.rows, _ = hardware_rows()
        self.gpus = {str(row["name"]): str(row["gpu"]) for row in self.rows}
        self.kept = KeptResults()
        self.html = control_page(self.rows, workload_rows()[0])

    @asynccontextmanager
    async def life(self, _: Starlette) -> AsyncIterator[None]:
        """Compute the default view and read all machines in advance, so that they are cached; end the processes with the application."""
        everything = choice_of([(AMONG, "priced")])
        warm_up = {
            asyncio.create_task(_consume(self.run.answers("view", choice_of([])))),
            *(asyncio.create_task(_consume(each.answers("read", everything, machines_of(everything, self.rows)))) for each in self.team),
        }
        yield
        for task in warm_up:
            task.cancel()
        await asyncio.wait(warm_up)
        for worker in (self.run, *self.team):
            worker.end()

    async def page(self, _: Request) -> Response:
        return HTMLResponse(self.html, headers=HEADERS)

    async def view(self, request: Request) -> Response:
        return await self._first(request, self.run, "view")

    async def file(self, request: Request) -> Response:
        return await self._first(request, self.run, "file", request.path_params["name"])

    async def machines(self, request: Request) -> Response:
        try:
            choice = _choice(request)
            names = machines_of(choice, self.rows)
        except SpecError as error:
            return _error_response(error.problems)
        if not names:
            return StreamingResponse(iter([json.dumps({"done": 0, "of": 0}) + "\n"]), media_type="application/x-ndjson", headers=HEADERS)
        lines = _lines(_until_gone(request, self._views(choice, names)))
        return StreamingResponse(lines, media_type="application/x-ndjson", headers=HEADERS)

    async def _views(self, choice: Choice, names: Sequence[str]) -> AsyncGenerator[WorkMessage, None]:
        """Yield the views of the machines *names*, or why they are refused."""
        files = await asyncio.to_thread(cache_name, choice)
        try:
            async with aclosing(machine_views(choice, names, self.gpus, self.team, self.kept, files)) as views:
                async for view in views:
                    yield "said", view
        except SpecError as error:
            yield "refused", error.problems

    async def _first(self, request: Request, worker: Worker, task: str, *more: Any) -> Response:
        """Return the response with the only answer of *worker* to *task*."""
        try:
            choice = _choice(request)
        except SpecError as error:
            return _error_response(error.problems)
        first: WorkMessage | None = None
        async for message in _until_gone(request, worker.answers(task, choice, *more)):
            first = message
        if first is None:
            return PlainTextResponse("", _DISCONNECTED)
        kind, payload = first
        if kind == "refused":
            return _error_response(payload)
        if task == "file":
            named = {"Content-Disposition": f'attachment; filename="{payload.name}"'}
            return Response(payload.content, headers={**HEADERS, **named}, media_type=payload.type)
        return JSONResponse(payload, headers=HEADERS)


async def _consume(messages: AsyncGenerator[WorkMessage, None]) -> None:
    async for _ in messages:
        pass


def _choice(request: Request) -> Choice:
    """Return the choice in *request*. Raise SpecError for a request from another site's page, and for an unknown control."""
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise SpecError("only the stallsim page itself may send this request")
    return choice_of(request.query_params.multi_items())


def _error_response(problems: Sequence[str]) -> Response:
    return JSONResponse({"problems": [named_as_called(problem) for problem in problems]}, 422, headers=HEADERS)


async def _lines(messages: AsyncIterator[WorkMessage]) -> AsyncIterator[str]:
    """Yield each of *messages* as a line of JSON."""
    async for kind, payload in messages:
        yield named_as_called(json.dumps(payload if kind == "said" else {"problems": payload})) + "\n"


async def _until_gone(request: Request, messages: AsyncGenerator[WorkMessage, None]) -> AsyncIterator[WorkMessage]:
    """Yield *messages* until the client disconnects; then close their iterator, which cancels the computation."""
    gone = asyncio.create_task(_disconnected(request))
    step: asyncio.Future[WorkMessage | None] | None = None
    try:
        while not gone.done():
            step = asyncio.ensure_future(anext(messages, None))
            await asyncio.wait({step, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not step.done() or (message := step.result()) is None:
                return
            yield message
    finally:
        gone.cancel()
        if step is not None and not step.done():
            step.cancel()
            await asyncio.wait({step})
        await messages.aclose()


async def _disconnected(request: Request) -> None:
    """Return when the client of *request* has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
