"""Oracle: what ``sim extract`` makes of the same model, and a step of its table by itself."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import stallsim
from sim.cli import main
from sim.extract import extract, write
from sim.spec.input import Dataset
from sim.spec.library import load_part, load_workload
from sim.study.new.traced import is_torch

NET = """
from torch import nn

class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3)
        self.head = nn.Linear(width, 10)

    def forward(self, images):
        return self.head(self.conv(images).mean((2, 3)))

def words(width=16):
    return nn.Sequential(nn.Embedding(50, width), nn.Linear(width, 50))

def pictures(batch):
    import torch
    return torch.zeros(batch, 3, 16, 16)
"""


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(NET)
    return Path("mine.yaml")


@pytest.mark.needs("torch")
def test_a_torch_model_becomes_a_workload_that_runs(net: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["new", "workload", "--from", "net.py:Net", "--input", "3x16x16", "--arg", "width=4", "--batch", "64", "-o", "mine.yaml"]
    assert main(words) == 0
    message = capsys.readouterr().err
    assert "wrote mine.yaml: 162 parameters" in message and "next: python -m sim run hgx-h100 mine.yaml" in message
    made, table = load_workload("mine.yaml").spec, extract("net.py:Net", ["3x16x16"], "mine", {"width": 4})
    assert made.name == made.model.name == "mine"
    assert (made.model.layers, made.model.parameters, made.dataset.prepared) == (table.layers, table.parameters, table.input)
    assert (made.training.batch, made.dataset.name, made.training.stack.name) == (64, "imagenet-1k", "torch-2.x-ddp")
    assert "# prep: 7.47 ms" in net.read_text()  # what the user must replace is visible, not only in the catalog
    assert "# samples per GPU" in net.read_text() and "--from" not in made.model.command
    assert made.model.command.endswith("net.py:Net --input 3x16x16 --arg width=4 --batch 64 -o mine.yaml")
    write(table, Path("table.yaml"))
    options = {"batch": 64, "precision": "amp_bf16", "overrides": {"input.loader": "synthetic", "training.optimizer.name": "adam"}}
    mine, alone = (stallsim.run("p4d.24xlarge", name, **options).document for name in ("mine.yaml", "table.yaml"))
    assert mine["step_time_s"] == pytest.approx(alone["step_time_s"])


@pytest.mark.needs("torch")
def test_names_data_and_examples_of_a_torch_model(net: Path) -> None:
    assert main(["new", "workload", "net.py:words", "--input", "8:int64", "--dataset", "wikitext-2", "--name", "lines"]) == 0
    assert load_workload("lines.yaml").spec.dataset.name == "wikitext-2"
    assert main(["new", "workload", "net.py:Net", "--example", "net.py:pictures"]) == 0
    assert load_workload("net.yaml").spec.dataset.name == "imagenet-1k"
    before = Path("net.yaml").read_text()
    assert "--example net.py:pictures" in before
    assert main(["new", "workload", "net.py:Net", "--input", "3x8x8"]) == 2
    assert Path("net.yaml").read_text() == before
    assert main(["new", "workload", "net.py:Net", "--input", "3x8x8", "--force"]) == 0


@pytest.mark.needs("torch")
@pytest.mark.parametrize("data", [[], ["--dataset", "tokens"], ["--dataset", "openwebtext-seq2048"]])
def test_a_sample_of_text_has_as_many_tokens_as_the_input(net: Path, data: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Oracle: the shape of the input; the stream of the data set keeps its tokens."""
    assert main(["new", "workload", "net.py:words", "--input", "512:int64", *data, "-o", str(net)]) == 0
    name = data[-1] if data else "openwebtext-seq1024"
    assert f"note: {name} is cut into samples of 512 tokens, the length of the input" in capsys.readouterr().err
    made, like = load_workload(str(net)).spec, load_part(Dataset, name)
    assert made.tokens_per_sample == 512 and made.dataset.prepared == 512 * 8
    assert made.dataset.samples == like.of_sequence(512).samples
    assert (made.dataset.sample, made.dataset.prep) == pytest.approx((like.of_sequence(512).sample, like.of_sequence(512).prep))
    result = stallsim.run("p4d.24xlarge", str(net)).document
    assert result["tokens_per_s"] == pytest.approx(512 * result["throughput_samples_per_s"])


@pytest.mark.needs("torch")
def test_an_example_tells_the_tokens_of_a_sample_too(net: Path) -> None:
    Path("net.py").write_text(NET + "\ndef rows(batch):\n    import torch\n    return torch.zeros(batch, 40, dtype=torch.long)\n")
    assert main(["new", "workload", "net.py:words", "--example", "net.py:rows", "-o", str(net)]) == 0
    assert load_workload(str(net)).spec.tokens_per_sample == 40


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["net.py", "--input", "3x8x8"],
            "name the callable that returns the model, such as net.py:pictures; it has Net, words, pictures",
        ),
        (["net.py"], "net.py: name the callable that returns the torch model, and its input, such as net.py:Net --input 3x224x224"),
        (["net.py:Net"], "net.py:Net: the shape of its inputs is missing; write, for example, --input 3x224x224"),
        (["nett.py:Net", "--input", "3x8x8"], "nett.py: no such file"),
        (["net.py:Net", "--input", "3x8x8", "--dataset", "imagenet1k"], "imagenet1k is not in the catalog (workloads/datasets/)"),
        (["net.py:Net", "--input", "3x8x8", "--name", "a/b"], "--name a/b: write letters"),
        (["net.py:Net", "--input", "3x8x8", "--sequence", "8"], "a torch model is traced with its inputs; write --input"),
        (
            ["net.py:Net", "net.json", "--input", "3x8x8"],
            "net.py:Net: a torch model cannot be combined with other sources; leave out net.json",
        ),
        (
            ["net.json", "--input", "3x8x8"],
            "--input, --example and --arg: apply only to a torch model; write --from with a callable that returns it",
        ),
        (["net.py:Net", "--input", "3x8x8", "--example", "net.py:pictures"], "--input and --example: write one of the two"),
    ],
)
def test_what_makes_no_workload_is_told_before_torch_is_imported(
    net: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sim.extract.run", None)
    assert main(["new", "workload", *words, "-o", str(net)]) == 2
    error = capsys.readouterr().err
    assert message in error and len(error.strip().splitlines()) == 1
    assert not net.exists()


@pytest.mark.needs("torch")
def test_a_model_that_does_not_run_is_told(net: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in (
        (["net.py:Nett", "--input", "3x8x8"], "net.py has no 'Nett'; did you mean 'Net'?"),
        (["net.py:Net", "--input", "4x8x8"], "one training step failed in layer conv"),
    ):
        assert main(["new", "workload", *words, "-o", str(net)]) == 2
        assert message in capsys.readouterr().err and not net.exists()


def test_without_torch_one_sentence_says_so(net: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "sim.extract.run", raising=False)
    assert main(["new", "workload", "net.py:Net", "--input", "3x8x8", "-o", str(net)]) == 2
    assert "extract needs torch, which is not installed: pip install torch" in capsys.readouterr().err
    assert not net.exists()


def test_batch_and_data_of_a_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config.json").write_text('{"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 99, "n_positions": 64}')
    assert main(["new", "workload", "config.json", "--batch", "4", "--dataset", "openwebtext-seq1024", "-o", "mine.yaml"]) == 0
    made = load_workload("mine.yaml").spec
    assert (made.training.batch, made.dataset.name, made.dataset.sequence) == (4, "openwebtext-seq1024", 64)
    assert main(["new", "workload", "config.json", "--dataset", "wikitext3", "-o", "other.yaml"]) == 2
    assert not Path("other.yaml").exists()


def test_sources_that_are_torch_models() -> None:
    for source, torch in {
        "net.py:Net": True, "a/b/net.py:Net": True, "torchvision.models:vgg16": True, "net.pt2": True, "net.py": False,
        "config.json": False, "meta-llama/Llama-3.1-8B": False, "args.sh": False, "net.pt": False,
    }.items():  # fmt: skip
        assert is_torch(source) is torch
