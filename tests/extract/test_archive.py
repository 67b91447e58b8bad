"""Which exported programs are refused before torch opens them? Oracle: a file that a pickle would write, and does not."""

from __future__ import annotations

import io
import json
import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from sim.cli import main
from sim.extract import extract
from sim.extract.archive import check_archive
from sim.spec.yaml import SpecError

CONFIG = "model/data/weights/model_weights_config.json"
CONSTANTS = "model/data/constants/model_constants_config.json"


def archive(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)
    return path


def listed(**entry: object) -> bytes:
    return json.dumps({"config": {"layer.weight": {"path_name": "weight_0", "is_param": True, "use_pickle": False} | entry}}).encode()


REFUSED = {
    "a pickled tensor": ({CONFIG: listed(use_pickle=True)}, "layer.weight as a pickled object"),
    "no word of it": ({CONFIG: b'{"config": {"x": {"path_name": "weight_0"}}}'}, "x as a pickled object"),
    "a pickled constant": ({CONSTANTS: listed(path_name="opaque_obj_0")}, "layer.weight as a pickled object"),
    "a script object": ({CONSTANTS: listed(path_name="custom_obj_0")}, "layer.weight as a pickled object"),
    "legacy weights": ({"model/data/weights/model.pt": b""}, "holds pickled tensors"),
    "the format of torch 2.7": ({"version": b"8.1", "serialized_state_dict.pt": b""}, "holds pickled tensors"),
    "a compiled model": ({"model/data/aotinductor/model/a.so": b"\x7fELF"}, "holds compiled code"),
    "NaN in the list": ({CONFIG: b'{"config": NaN}'}, "NaN is not a JSON number"),
    "deep nesting": ({CONFIG: b"[" * 100_000 + b"]" * 100_000}, "nested more than"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_archive_that_holds_more_than_tensors_is_refused(tmp_path: Path, case: str, capsys: pytest.CaptureFixture[str]) -> None:
    members, said = REFUSED[case]
    path = archive(tmp_path / "net.pt2", **members)
    assert main(["extract", str(path), "-o", str(tmp_path / "net.yaml")]) == 2
    message = capsys.readouterr().err
    assert said in message and message.startswith(str(path)) and message.count("\n") == 1
    assert not (tmp_path / "net.yaml").exists()


def test_tensors_and_a_graph_are_let_through(tmp_path: Path) -> None:
    check_archive(archive(tmp_path / "net.pt2", **{CONFIG: listed(), "model/data/weights/weight_0": b"\0" * 4}))


class Touch:
    """Pickles to a call that makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, int]]:
        return os.open, (str(self.path), os.O_CREAT)


@pytest.mark.slow
def test_example_inputs_are_tensors_and_nothing_else(tmp_path: Path) -> None:
    """torch falls back to unpickling anything where the example inputs are no tensors."""
    torch = pytest.importorskip("torch")
    good, bad, proof = tmp_path / "good.pt2", tmp_path / "bad.pt2", tmp_path / "proof"
    exported = torch.export.export(torch.nn.Linear(4, 4).train(), (torch.zeros(3, 4),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    torch.export.save(exported, good)
    assert extract(str(good), [], "net").parameters == 20
    evil = io.BytesIO()
    torch.save(Touch(proof), evil)
    with zipfile.ZipFile(good) as source, zipfile.ZipFile(bad, "w") as target:
        for member in source.namelist():
            target.writestr(member, evil.getvalue() if "sample_inputs" in member else source.read(member))
    with pytest.raises(SpecError, match=r"is not a program written by torch\.export\.save"):
        extract(str(bad), [], "net")
    assert not proof.exists()
    pickle.loads(pickle.dumps(Touch(proof)))
    assert proof.exists(), "the pickle would have done it"


@pytest.mark.nightly
@pytest.mark.needs("torch")
def test_an_archive_of_something_else_is_refused_in_one_sentence(tmp_path: Path) -> None:
    """torch logs a traceback of its own for such a file; in a process of its own, since torch's log is set up once."""
    path = archive(tmp_path / "other.pt2", other=b"text")
    done = subprocess.run(
        [sys.executable, "-m", "sim", "extract", str(path)], capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"{path}: is not a program written by torch.export.save") and done.stderr.count("\n") == 1
