"""Models that people use, against torch's own counts; and the catalog's files against the commands in their headers."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sim.extract import extract, run_extract
from sim.extract.target import load_target
from sim.spec.library import load_part
from sim.spec.model import Model
from tests.extract.readiness import assert_same_order, watched
from tests.extract.tables import traced_models
from tests.late import torch

pytestmark = pytest.mark.needs("torch")

MODELS = traced_models()


def counted(model: Any, batch: int, shape: tuple[int, ...]) -> tuple[int, int]:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as forward:
        output = model(torch.empty(batch, *shape, device="meta"))
    outputs = output if isinstance(output, tuple) else (output,)
    with FlopCounterMode(display=False) as backward:
        sum(tensor.sum() for tensor in outputs).backward()
    return forward.get_total_flops(), backward.get_total_flops()


@pytest.mark.parametrize(
    ("name", "size", "backward_too"),
    [
        ("alexnet", 224, True),
        ("resnet18", 224, True),
        ("squeezenet1_0", 224, True),
        ("vgg16", 224, True),
        pytest.param("inception_v3", 299, True, marks=pytest.mark.nightly),
        ("mobilenet_v2", 224, False),  # the counter's backward counts every group of a grouped convolution in full
        pytest.param("shufflenet_v2_x0_5", 224, False, marks=pytest.mark.nightly),
    ],
)
def test_catalog_flop_equal_torchs_counter(name: str, size: int, backward_too: bool) -> None:
    """Oracle: FlopCounterMode on the meta device, the difference of two batches, since batch norm refuses one sample."""
    torchvision = pytest.importorskip("torchvision", reason="the catalog's image models are torchvision's")
    with torch.device("meta"):
        model = getattr(torchvision.models, name)(**({"init_weights": False} if name == "inception_v3" else {})).train()
    two, three = (counted(model, batch, (3, size, size)) for batch in (2, 3))
    table = load_part(Model, name)
    assert table.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert [sum(1 for _ in model.parameters())] == [sum(len(layer.gradients) for layer in table.layers)]
    assert sum(layer.forward for layer in table.layers) == three[0] - two[0]
    if backward_too:
        assert sum(layer.backward for layer in table.layers) == three[1] - two[1]


def test_catalog_order_equals_a_real_backward() -> None:
    """Oracle: post-accumulate hooks of resnet18 run with real numbers on a small image."""
    torchvision = pytest.importorskip("torchvision", reason="the catalog's image models are torchvision's")
    model = torchvision.models.resnet18().train()
    order = watched(model)
    model(torch.randn(2, 3, 64, 64)).sum().backward()
    assert_same_order(load_part(Model, "resnet18"), order)


def test_bert_order_equals_a_real_backward() -> None:
    """Oracle: the same hooks on a BERT for pretraining of two layers and width 8; its decoder shares the word embeddings."""
    size = {"width": 8, "depth": 2, "heads": 2, "vocabulary": 50}
    model = load_target("workloads/models/sources/bert.py:BertForPretraining")(**size)
    order = watched(model)
    tokens = torch.zeros(2, 6, dtype=torch.long)
    words, following = model(tokens, tokens, tokens, tokens[:, :2])
    (words.sum() + following.sum()).backward()
    inputs = [f"{name}=6:int64" for name in ("input_ids", "token_type_ids", "attention_mask")] + ["masked_positions=2:int64"]
    assert_same_order(extract("workloads/models/sources/bert.py:BertForPretraining", inputs, "bert", size), order)


@pytest.mark.parametrize("name", ["alexnet", "resnet10_noresidue", pytest.param("bert-base-seq384", marks=pytest.mark.nightly)])
def test_the_command_in_a_header_writes_the_same_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = MODELS[name]
    table = load_part(Model, str(path))
    words = shlex.split(table.command)
    assert words[:4] == ["python", "-m", "sim", "extract"]
    options = list(zip(words[5:-2:2], words[6:-2:2], strict=True))
    if "torchvision" in words[4] or "resnet" in words[4]:
        pytest.importorskip("torchvision", reason="the catalog's image models are torchvision's")
    monkeypatch.chdir(tmp_path)
    written = run_extract(
        words[4],
        [value for option, value in options if option == "--input"],
        Path(words[-1]),
        arguments=[value for option, value in options if option == "--arg"],
    )
    if written.source != table.source:
        pytest.skip(f"the catalog was {table.source}, here it is {written.source}")
    assert Path(words[-1]).read_bytes() == path.read_bytes()


def test_unknown_depth_is_told() -> None:
    from sim.spec.yaml import SpecError

    pytest.importorskip("torchvision", reason="the catalog's image models are torchvision's")
    with pytest.raises(SpecError, match="depth 11: one of 10, 12, 16"):
        extract("workloads/models/sources/resnet.py:resnet", ["3x224x224"], "resnet11", {"depth": 11})


PEAK = """
import pathlib, sys
from sim.cli import main
assert main(sys.argv[1:]) == 0
print(next(line.split()[1] for line in pathlib.Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")))
"""


@pytest.mark.nightly
@pytest.mark.slow
def test_the_largest_model_takes_less_than_4_gb(tmp_path: Path) -> None:
    """Peak memory of the whole process, as the system counts it; what it writes is the catalog's table."""
    name = "llama-7b"
    if not Path("/proc/self/status").exists():
        pytest.skip("/proc tells the peak memory of a process on Linux only")
    words = shlex.split(load_part(Model, name).command)[3:-1]
    command = [sys.executable, "-c", PEAK, *words, str(tmp_path / "it.yaml"), "--name", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) * 1024 < 4e9
    written, expected = (load_part(Model, str(path)) for path in (tmp_path / "it.yaml", MODELS[name]))
    assert written.layers == expected.layers
