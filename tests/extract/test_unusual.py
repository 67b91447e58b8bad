"""Models unlike a plain feed-forward one: right, or refused in a sentence.

Oracles: the model's own parameters; the gradients that a backward on meta leaves; FlopCounterMode, as the difference of two batches. Its
backward counts every group of a grouped convolution in full, and no product of a vector and a matrix.
"""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest

from sim.extract import extract
from sim.spec.model import Model
from sim.spec.yaml import SpecError
from tests.late import torch

pytestmark = pytest.mark.needs("torch")

UNUSUAL = Path(__file__).with_name("unusual.py")


def torchs(target: str, inputs: list[str], arguments: dict[str, Any]) -> tuple[int, list[int], int, int]:
    """Return parameters, sorted gradient tensors, and FLOP of a sample forward and backward, all as torch counts them."""
    from torch.utils.flop_counter import FlopCounterMode

    from sim.extract import build, run, trace
    from sim.extract.fused import as_on_cuda
    from sim.extract.target import load_target

    totals = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = build.build(target, load_target(target), arguments)
        with torch.device("meta"), as_on_cuda(), build.unpadded():
            for batch in (2, 3):
                positional, named = run._inputs(model, inputs, batch)
                with FlopCounterMode(display=False) as forward:
                    loss = trace.loss_of(model(*positional, **named))
                with FlopCounterMode(display=False) as backward:
                    loss.backward()
                totals.append((forward.get_total_flops(), backward.get_total_flops()))
    gradients = sorted(parameter.numel() for parameter in model.parameters() if parameter.grad is not None)
    (two, backward_two), (three, backward_three) = totals
    return sum(parameter.numel() for parameter in model.parameters()), gradients, three - two, backward_three - backward_two


def ours(table: Model) -> tuple[int, list[int], float, float]:
    gradients = sorted(size for layer in table.layers for size in layer.gradients)
    return table.parameters, gradients, sum(layer.forward for layer in table.layers), sum(layer.backward for layer in table.layers)


@pytest.mark.parametrize(
    ("name", "inputs", "arguments"),
    [
        ("recurrent", ["7:int64"], {"kind": "LSTM"}),
        pytest.param("recurrent", ["7:int64"], {"kind": "GRU"}, marks=pytest.mark.nightly),
        ("Adversarial", ["noise=8", "real=12"], {}),
        ("LowRank", ["32"], {}),
        ("SelfAttention", ["6x32"], {}),
        ("encoder", ["6x32"], {}),
        ("Mixture", ["5x16"], {}),
        ("Scan", ["5x8"], {}),
        ("Normalized", ["8"], {}),
        ("Hourglass", ["3x16x16"], {}),
        ("Spectral", ["8"], {}),
        ("bag", ["5:int64"], {}),
        ("lazy", ["8"], {}),
        ("replicated", ["8"], {}),
        pytest.param("compiled", ["8"], {}, marks=pytest.mark.nightly),
    ],
)
def test_unusual_nets_are_torchs(name: str, inputs: list[str], arguments: dict[str, Any]) -> None:
    target = f"{UNUSUAL}:{name}"
    traced, expected = ours(extract(target, inputs, "net", arguments)), torchs(target, inputs, arguments)
    assert traced[:3] == expected[:3]
    if name != "Scan":  # a grouped convolution
        assert traced[3] == expected[3]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "convnext_atto"])
def test_models_of_timm_are_torchs(name: str) -> None:
    pytest.importorskip("timm", reason="tests models of timm")
    target, inputs, arguments = "timm:create_model", ["3x224x224"], {"model_name": name}
    traced, expected = ours(extract(target, inputs, "net", arguments)), torchs(target, inputs, arguments)
    assert traced[:3] == expected[:3]
    if name.startswith("vit"):  # ConvNeXt's convolutions are depthwise
        assert traced[3] == expected[3]


@pytest.mark.parametrize(
    ("name", "inputs", "arguments", "uncounted"),
    [
        ("GPT2LMHeadModel", ["input_ids=16:int64", "labels=16:int64"], {"n_layer": 2, "n_embd": 48, "vocab_size": 99}, 0),
        ("T5ForConditionalGeneration", ["input_ids=16:int64", "labels=16:int64"], {"num_layers": 2, "vocab_size": 99}, 0),
        ("WhisperForConditionalGeneration", ["input_features=80x3000", "labels=8:int64"], {"encoder_layers": 1, "decoder_layers": 1}, 0),
        ("ViTForImageClassification", ["pixel_values=3x224x224"], {"num_hidden_layers": 1}, 0),
        # two experts of three matrices of 64 x 64 for each of 16 tokens: torch's counter does not know grouped products
        (
            "MixtralForCausalLM",
            ["input_ids=16:int64", "labels=16:int64"],
            {"num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
            | {"vocab_size": 99, "dtype": "bfloat16"},
            2 * 2 * 3 * 64 * 64 * 16,
        ),
    ],
)
def test_models_of_transformers_are_torchs(name: str, inputs: list[str], arguments: dict[str, Any], uncounted: int) -> None:
    pytest.importorskip("transformers", reason="tests models of transformers")
    target = f"transformers:{name}"
    parameters, gradients, forward, backward = torchs(target, inputs, arguments)
    assert ours(extract(target, inputs, "net", arguments)) == (parameters, gradients, forward + uncounted, backward + 2 * uncounted)


@pytest.mark.parametrize(
    ("name", "inputs", "message"),
    [
        ("Routed", ["16"], "needs the value of a tensor in the forward of the model (Routed, called with 2x16, including the batch)"),
        (
            "detector",
            ["@{unusual}:labeled_images"],
            "needs the value of a tensor in layer transform (GeneralizedRCNNTransform, called with",
        ),
    ],
)
def test_what_depends_on_values_is_refused(name: str, inputs: list[str], message: str) -> None:
    if name == "detector":
        pytest.importorskip("torchvision", reason="tests a detector of torchvision")
    with pytest.raises(SpecError) as caught:
        extract(f"{UNUSUAL}:{name}", [text.format(unusual=UNUSUAL) for text in inputs], "net")
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_may_import_what_stands_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From its own folder, as running it would; inside a package relatively; late, when the callable is called."""
    package = tmp_path / "mine"
    package.mkdir()
    shutil.copy(UNUSUAL, tmp_path / "plain_blocks.py")
    shutil.copy(UNUSUAL, package / "blocks.py")
    (tmp_path / "plain.py").write_text("def net():\n    from plain_blocks import LowRank\n    return LowRank()\n")
    (package / "nets.py").write_text("from .blocks import LowRank\n\ndef net():\n    return LowRank()\n")
    with pytest.raises(SpecError, match="relative imports need an"):
        extract(f"{package}/nets.py:net", ["32"], "net")
    (package / "__init__.py").touch()
    expected = extract(f"{UNUSUAL}:LowRank", ["32"], "net").layers
    assert extract(f"{package}/nets.py:net", ["32"], "net").layers == expected
    assert extract(f"{tmp_path}/plain.py:net", ["32"], "net").layers == expected
    monkeypatch.chdir(tmp_path)
    assert extract("mine.nets:net", ["32"], "net").layers == expected
