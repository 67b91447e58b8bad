"""Whatever is wrong with a model or its inputs: one sentence that says what, and nothing written."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sim.extract import extract, run_extract
from sim.extract.target import check_target, load_target, parse_arguments, parse_input
from sim.spec.yaml import SpecError


@pytest.mark.parametrize(
    ("text", "name", "sizes", "dtype"),
    [
        ("3x224x224", "", (7, 3, 224, 224), "float32"),
        ("input_ids=384:int64", "input_ids", (7, 384), "int64"),
        ("user=scalar:int64", "user", (7,), "int64"),
        ("50xBx1024:float16", "", (50, 7, 1024), "float16"),
        ("B", "", (7,), "float32"),
    ],
)
def test_inputs(text: str, name: str, sizes: tuple[int, ...], dtype: str) -> None:
    shape = parse_input(text)
    assert (shape.name, shape.sizes(7), shape.dtype) == (name, sizes, dtype)


@pytest.mark.parametrize("text", ["", "3,224,224", "0x3", "3x", "ids=", "1ids=3", "BxB", "-3", "3x224:"])
def test_misspelled_inputs(text: str) -> None:
    with pytest.raises(SpecError, match=r"write \[NAME=\]SHAPE\[:TYPE\]"):
        parse_input(text)


def test_arguments_are_read_as_yaml_words() -> None:
    assert parse_arguments(["depth=18", "size=large", "norm=false", "rate=0.1", "none=null"]) == {
        "depth": 18,
        "size": "large",
        "norm": False,
        "rate": 0.1,
        "none": None,
    }
    for wrong in ("depth", "=3", "a b=3", "rate=1e9"):
        with pytest.raises(SpecError, match="--arg"):
            parse_arguments([wrong])


@pytest.mark.parametrize(
    ("target", "inputs", "arguments", "message"),
    [
        ("unknown_module:net", ["3"], [], "there is no module 'unknown_module'"),
        ("no_colon", ["3"], [], "write module:callable"),
        ("{nets}:lstmm", ["3"], [], "has no 'lstmm'; did you mean 'lstm'"),
        ("torchvision:resnet50", ["3x64x64"], [], "torchvision has no 'resnet50'; write torchvision.models:resnet50"),
        ("absent.py:net", ["3"], [], "absent.py: no such file"),
        ("{nets}:NETS", ["3"], [], "has no 'NETS'"),
        ("{nets}:raising", ["3"], ["dept=9"], "got an unexpected keyword argument 'dept'; did you mean --arg depth=9?"),
        ("{nets}:raising", ["3"], ["depth=9"], "calling it failed: ValueError: depth 9 is not supported (at {nets}:"),
        ("{nets}:raising", ["3"], ["width=9"], "unexpected keyword argument 'width'"),
        ("{nets}:not_a_model", ["3"], [], "returned str; expected a torch.nn.Module"),
        ("{nets}:without_parameters", ["3"], [], "no parameter to train"),
        ("{nets}:nothing_to_train", ["5"], [], "nothing to train"),
        ("{nets}:branching", ["5"], [], "needs the value of a tensor"),
        ("{nets}:choosing", ["5"], [], "needs the value of a tensor"),
        ("{nets}:through_numpy", ["5"], [], "needs the value of a tensor"),
        ("{nets}:unknown_operator", ["5"], [], "the operator 'linalg_qr'"),
        (
            "{nets}:leaving",
            ["5"],
            [],
            "failed in the forward of the model (Forward, called with 2x5, including the batch): SystemExit: 3",
        ),
        ("{nets}:batch_dependent", ["5"], [], "different operators for batches of 2 and 3 (sin in the model and exp in the model)"),
        ("{nets}:contrastive", ["5"], [], "{nets}:contrastive: mm in the model: costs 40 at a batch of 2 and 90 at 3; a layer table needs"),
        ("{nets}:normed", [], [], "the shape of its inputs is missing"),
        (
            "{nets}:normed",
            ["4x8x8"],
            [],
            "one training step failed in layer 0 (Conv2d, called with 2x4x8x8, including the batch): RuntimeError: ",
        ),
        ("{nets}:ill_fitting", ["8"], [], "failed in layer blocks.1.0 (Linear, called with 2x8, including the batch): RuntimeError: "),
        ("{nets}:Shared", ["tokens=3"], [], "failed in layer words (Embedding, called with 2x3, including the batch): RuntimeError: "),
        ("{nets}:scripted", ["8"], [], "the model is a TorchScript module, which hides its layers; name a callable that returns it before"),
        ("{nets}:on_cuda", ["5"], [], "tracing needs no GPU: let tensors follow the inputs"),
        ("{nets}:named_device", ["5"], [], "torch.zeros(3, device=x.device) if the code names a device"),
        ("{nets}:experts", ["8"], [], "with --arg dtype=bfloat16 for a class of transformers, otherwise with .to(torch.bfloat16)"),
        ("{nets}:shapeless", ["5"], [], "without one its shapes are unknown: define one with register_fake"),
        ("{nets}:custom", ["5"], [], "the operator 'netsown::tripled' in the forward of the model (Forward, called with 2x5"),
        ("{nets}:custom", ["5"], [], "not defined; let the callable use torch's own operators instead, or add a rule to"),
        ("{nets}:normed", ["3x8x8:float99"], [], "float99 is not a torch type"),
        ("{nets}:Shared", ["words=3:int64"], [], "forward(tokens) does not fit the inputs: missing a required argument: 'tokens'"),
        ("{nets}:Shared", ["tokens=3", "tokens=3"], [], "--input tokens: appears twice"),
        ("{nets}:normed", ["@{nets}:raising"], [], "--example {nets}:raising: calling it with a batch of 2 failed"),
        ("{nets}:normed", ["@{nets}:no_tensor"], [], "--example {nets}:no_tensor: returned list without a tensor; return the inputs"),
        ("{nets}:normed", ["@{nets}:four_pictures"], [], "the example inputs are the same size for 2 samples as for 3"),
    ],
)
def test_one_sentence_and_nothing_written(
    net: Callable[[str], str], tmp_path: Path, target: str, inputs: list[str], arguments: list[str], message: str
) -> None:
    nets = net("").removesuffix(":")
    output = tmp_path / "net.yaml"
    with pytest.raises(SpecError) as caught:
        run_extract(target.format(nets=nets), [text.format(nets=nets) for text in inputs], output, arguments=arguments)
    assert message.format(nets=nets) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_the_nearest_of_many_callables_are_named(tmp_path: Path) -> None:
    """As often as `difflib` finds none that is meant: the nearest first, and how many others there are."""
    code = tmp_path / "many.py"
    code.write_text("".join(f"class {name}: pass\n" for name in ["Transformer", *(f"Block{letter}" for letter in "abcdefghijk")]))
    with pytest.raises(SpecError, match=r"has no 'TransformerLanguageModelling'; it has Transformer, .* and 4 others$"):
        load_target(f"{code}:TransformerLanguageModelling")
    with pytest.raises(SpecError, match=r"such as .*:Blockk; it has Blockd, .*, Blockk and 4 others$"):
        check_target(str(code))


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "sim.extract.run", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(SpecError, match=r"extract needs torch, which is not installed: pip install"):
        extract("torchvision.models:vgg16", ["3x224x224"], "vgg16")


def test_what_a_model_prints_stays_off_stdout(net: Callable[[str], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Data belong on stdout; the user's code may print."""
    file = tmp_path / "loud.py"
    file.write_text("print('hello')\nfrom torch import nn\ndef net():\n    print('building')\n    return nn.Linear(3, 2)\n")
    extract(f"{file}:net", ["3"], "loud")
    assert capsys.readouterr().out == ""
