"""Does the server answer only the page and this computer, and drop requests that nobody reads? Through starlette's test client."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.late import Late

pytestmark = pytest.mark.needs("starlette", "httpx")
server: Any = Late("sim.ui.server")
testclient: Any = Late("starlette.testclient")
HOME = "http://127.0.0.1"


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with testclient.TestClient(server.application(), base_url=HOME) as opened_client:
        yield opened_client


def test_the_page_may_load_nothing_from_elsewhere(client: Any) -> None:
    answer = client.get("/")
    assert answer.status_code == 200
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "connect-src 'self'" in answer.headers["content-security-policy"]


def test_a_view_and_its_file_and_its_machines(client: Any) -> None:
    query = {"workload": "alexnet", "hardware": "p3.8xlarge", "nodes": "2", "among": "none"}
    view = client.get("/view", params=query).json()
    assert view["problems"] == []
    file = client.get("/file/run.json", params=query)
    assert file.headers["content-disposition"] == 'attachment; filename="run.json"'
    assert view["verdict"] == file.json()["verdict"]
    assert client.get("/machines", params=query).json() == {"done": 0, "of": 0}


def test_what_is_wrong_is_said(client: Any) -> None:
    view = client.get("/view", params={"workload": "alexnett"})
    assert view.json()["problems"] == ["alexnett is not in the catalog (workloads/); did you mean alexnet?"]
    assert client.get("/view", params={"nodez": "2"}).status_code == 422
    assert client.get("/file/passwd").json()["problems"][0].startswith("passwd: no such file")
    lines = client.get("/machines", params={"workload": "alexnett"}).text.splitlines()
    assert json.loads(lines[-1])["problems"] == ["alexnett is not in the catalog (workloads/); did you mean alexnet?"]


def test_messages_name_the_program_as_it_was_called(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/usr/bin/stallsim"])
    for route in ("/file/run.json", "/machines"):
        answer = client.get(route, params={"workload": "zzz"}).text
        assert "'stallsim list workloads'" in answer and "python -m sim" not in answer, route


def test_other_sites_are_refused(client: Any) -> None:
    assert client.get("/", headers={"host": "elsewhere.example"}).status_code == 400
    assert client.get("/view", headers={"sec-fetch-site": "cross-site"}).status_code == 422
    assert client.get("/", headers={"sec-fetch-site": "cross-site"}).status_code == 200, "a shared link opens the page"


def test_a_reader_who_leaves_ends_the_computation() -> None:
    closed = []

    async def messages() -> AsyncIterator[tuple[str, int]]:
        try:
            yield "said", 1
            await asyncio.Event().wait()
        finally:
            closed.append(True)

    class Request:
        def __init__(self) -> None:
            self.left = asyncio.Event()

        async def receive(self) -> dict[str, str]:
            await self.left.wait()
            return {"type": "http.disconnect"}

    async def read() -> list[Any]:
        request = Request()
        received = []
        async for message in server._until_gone(request, messages()):
            received.append(message)
            request.left.set()
        return received

    assert asyncio.run(asyncio.wait_for(read(), 60)) == [("said", 1)]
    assert closed == [True]


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from sim.cli import main

    monkeypatch.setitem(__import__("sys").modules, "uvicorn", None)
    assert main(["ui", "--port", "0"]) == 2
    assert capsys.readouterr().err == "ui needs starlette and uvicorn, which are not installed: pip install starlette uvicorn\n"


def test_a_port_in_use_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    import errno
    import os
    import socket

    pytest.importorskip("uvicorn")
    from sim.cli import main

    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        assert main(["ui", "--port", str(port)]) == 2
    assert capsys.readouterr().err.startswith(f"--port {port}: {os.strerror(errno.EADDRINUSE)}; --port 0 chooses a free port")
