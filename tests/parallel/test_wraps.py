"""Oracle: torch's own policies on real models wrap the same parameters, and ``fully_shard`` on the same modules sends the same."""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import pytest

from sim.parallel.wraps import chains
from sim.spec.layer import Layer
from sim.spec.library import load_part
from sim.spec.model import Model
from sim.spec.module_paths import matches
from sim.spec.parallel import Parallel, Wrapping
from sim.spec.yaml import SpecError
from tests.late import torch
from tests.parallel.layouts import layout, model, sent
from tests.parallel.recorder import Recorder, fake_group

pytestmark = [pytest.mark.needs("torch"), pytest.mark.filterwarnings("ignore::UserWarning")]
IMAGE, TOKENS = (1, 3, 64, 64), (1, 8)


@pytest.fixture(autouse=True, scope="module")
def _group() -> Iterator[None]:
    with fake_group(8):
        yield


@cache
def table(name: str) -> Model:
    loaded = load_part(Model, name)
    assert isinstance(loaded, Model)
    return loaded


def made(name: str) -> Any:
    """Return the model that the table *name* was made from."""
    from sim.extract import target

    where, arguments = {
        "bert-base-seq384": ("workloads/models/sources/bert.py:bert_qa", {"size": "base"}),
        "gpt2": ("workloads/models/sources/gpt.py:gpt2", {"size": "small"}),
        "llama-7b": ("workloads/models/sources/llama.py:Llama", {}),
        "ssd300": ("workloads/models/sources/ssd.py:Ssd300", {}),
    }.get(name, (f"torchvision.models:{name}", {}))
    return target.load_target(where)(**arguments)


def held(name: str, wrapping: Wrapping) -> dict[str, int]:
    """Return the parameters that each wrap of the table *name* holds; those of the root under an empty name."""
    sizes: dict[str, int] = defaultdict(int)
    for layer, chain in zip(table(name).layers, chains(table(name), wrapping), strict=True):
        sizes[chain[-1] if chain else ""] += sum(layer.gradients) + sum(layer.frozen)
    return {wrap: size for wrap, size in sizes.items() if size}


def held_by_torch(net: Any, wrapped: Sequence[Any]) -> dict[str, int]:
    """Return the same where torch wraps the modules *wrapped* of *net*, by the innermost one around each parameter."""
    names = {path: module for path, module in net.named_modules() if any(module is each for each in wrapped)}
    sizes: dict[str, int] = defaultdict(int)
    for name, parameter in net.named_parameters():
        around = [path for path in names if name.startswith(f"{path}.")]
        sizes[max(around, key=len, default="")] += parameter.numel()
    return {wrap: size for wrap, size in sizes.items() if size}


SIZES = (50_000, 300_000, 1_000_000, 3_000_000, 10_000_000, 30_000_000, 100_000_000)
MODELS = ("resnet50", "densenet121", "vgg16", "mobilenet_v2", "vit_b_16", "bert-base-seq384", "llama-7b", "ssd300")


def _recursively_wrapped(net: Any, least: int) -> list[Any]:
    from functools import partial

    from torch.distributed.fsdp.wrap import _recursive_wrap, size_based_auto_wrap_policy

    wrapped: list[Any] = []

    def wrapper(module: Any) -> Any:
        wrapped.append(module)
        return module

    policy = partial(size_based_auto_wrap_policy, min_num_params=least)
    _recursive_wrap(net, policy, wrapper, set(), set(), only_wrap_children=True)
    return wrapped


def test_wraps_by_size_what_torch_wraps() -> None:
    wrong = []
    for name in MODELS:
        with torch.device("meta"):
            net = made(name)
        for least in SIZES:
            theirs, own = held_by_torch(net, _recursively_wrapped(net, least)), held(name, least)
            if theirs != own:
                wrong.append(f"{name} from {least}: {set(own.items()) ^ set(theirs.items())}")
    assert not wrong, "\n".join(wrong)


BY_CLASS = (
    ("resnet50", ["layer*.*"], ("Bottleneck",)),
    ("densenet121", ["features.denseblock*.*"], ("_DenseLayer",)),
    ("densenet121", ["features.denseblock*", "features.transition*"], ("_DenseBlock", "_Transition")),
    ("mobilenet_v2", ["features.*.conv"], ()),
    ("vgg16", ["features", "classifier.*"], ()),
    ("vit_b_16", ["encoder.layers.*"], ("EncoderBlock",)),
    ("bert-base-seq384", ["bert.layer.*"], ("BertLayer",)),
    ("bert-base-seq384", ["**.layer.*", "bert.layer.*.*"], ()),
    ("llama-7b", ["block.*"], ("LlamaBlock",)),
)
"""A model, patterns, and the classes whose modules these are; without any, those that the patterns match."""


def _by_class(net: Any, classes: Sequence[str]) -> list[Any]:
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    kinds = {type(module) for module in net.modules() if type(module).__name__ in classes}
    return list(ModuleWrapPolicy(kinds)._run_policy(net, set(), {}))


def test_patterns_wrap_what_a_policy_of_classes_wraps() -> None:
    wrong = []
    for name, patterns, classes in BY_CLASS:
        with torch.device("meta"):
            net = made(name)
        matched = [module for path, module in net.named_modules() if any(matches(pattern, path) for pattern in patterns)]
        theirs, own = held_by_torch(net, _by_class(net, classes) if classes else matched), held(name, tuple(patterns))
        if theirs != own:
            wrong.append(f"{name}, {patterns}: {set(own.items()) ^ set(theirs.items())}")
    assert not wrong, "\n".join(wrong)


def _sharded(net: Any, wrapped: Callable[[str], bool], ranks: int) -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    keys = {"mesh": _mesh(ranks), "mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)}
    for path, module in reversed(list(net.named_modules())):
        if path and wrapped(path) and next(module.parameters(), None) is not None:
            fully_shard(module, **keys)
    fully_shard(net, **keys)


@cache
def _mesh(ranks: int) -> Any:
    from torch.distributed.device_mesh import DeviceMesh

    return DeviceMesh("cpu", list(range(ranks)))


SENT: tuple[tuple[str, Wrapping, int], ...] = (
    ("shufflenet_v2_x0_5", ("stage*", "stage*.*"), 4),
    ("alexnet", 1_000_000, 8),
)
SENT_NIGHTLY: tuple[tuple[str, Wrapping, int], ...] = (
    ("resnet50", ("layer*", "layer*.*"), 4),
    ("resnet50", 1_000_000, 8),
    ("mobilenet_v2", ("**.conv",), 4),
    ("resnet50", ("layer*.*",), 8),
    ("resnet50", ("layer*.*.conv*", "layer3", "fc"), 2),
    ("densenet121", ("features.denseblock*.*",), 4),
    ("densenet121", ("features", "features.denseblock*"), 8),
    ("densenet121", 300_000, 2),
    ("mobilenet_v2", ("features.*",), 8),
    ("vgg16", 3_000_000, 8),
    ("vgg16", ("features.*", "classifier.*"), 8),
    ("bert-base-seq384", ("bert.layer.*",), 2),
    ("bert-base-seq384", 5_000_000, 2),
    ("bert-base-seq384", ("bert", "bert.layer.*", "bert.layer.*.*"), 2),
)


def _of_torch(name: str, wrapping: Wrapping, ranks: int) -> list[tuple[str, int, float]]:
    """Return what one step of the real model sends, wrapped as the table is; its weights are whatever the memory holds.

    torch's fake tensors would take no memory, but twice the time. Buffers are BF16 like the weights, as batch normalization on a CPU asks.
    """
    wanted = set(held(name, wrapping))
    with torch.device("meta"):
        net = made(name)
    _sharded(net, wanted.__contains__, ranks)
    net.to_empty(device="cpu")
    for module in net.modules():
        for buffer, value in module.named_buffers(recurse=False):
            if value.is_floating_point():
                module.register_buffer(buffer, torch.zeros_like(value, dtype=torch.bfloat16))
    with Recorder() as recorder:
        inputs = torch.zeros(TOKENS, dtype=torch.long) if name.startswith("bert") else torch.zeros(IMAGE)
        outputs = net(inputs, inputs, inputs) if name.startswith("bert") else net(inputs)
        torch.stack([each.float().sum() for each in (outputs if isinstance(outputs, tuple | list) else (outputs,))]).sum().backward()
    del net, outputs
    gc.collect(1)  # modules and their hooks hold each other; they are young, and all that other tests keep would take seconds
    return recorder.seen


@pytest.mark.parametrize("cases", [SENT, pytest.param(SENT_NIGHTLY, marks=pytest.mark.nightly)], ids=["some", "others"])
def test_sends_what_fully_shard_sends_for_the_same_modules(cases: tuple[tuple[str, Wrapping, int], ...]) -> None:
    wrong = []
    for name, wrapping, ranks in cases:
        theirs, ours = _of_torch(name, wrapping, ranks), sent(layout(table(name), ranks, shard="parameters", wrap=wrapping))
        if ours != theirs:
            at = next(
                (index for index, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), min(len(ours), len(theirs))
            )
            wrong.append(
                f"{name}, {wrapping}: of {len(ours)}, {len(theirs)} operation {at} is {ours[at : at + 3]}, torch's {theirs[at : at + 3]}"
            )
    assert not wrong, "\n".join(wrong)


# --- slips ---------------------------------------------------------------------------------------------------------------


def test_a_model_without_numbered_blocks_is_wrapped_by_torchs_size() -> None:
    """Of VGG-16 only the first classifier has 100 M parameters."""
    sizes = [size for op, _, size in sent(layout(table("vgg16"), 8, shard="parameters")) if op == "reduce_scatter"]
    first = 4.0 * (512 * 7 * 7 * 4096 + 4096)
    assert sorted(sizes) == [4.0 * table("vgg16").parameters - first, first]


def _row(name: str, **fields: Any) -> Layer:
    return Layer.model_validate({"name": name, "op": "gemm", "gradients": [8], "backward": "1 FLOP"} | fields)


@pytest.mark.parametrize(
    ("wrapping", "message"),
    [
        (("layer.*",), "no module of toy with parameters matches layer"),
        (("blocks",), "list of modules that is never called itself, so FSDP cannot wrap it; write blocks.*"),
        (("head",), "head of toy uses the parameters of tokens, but head wraps the one and the root the other"),
    ],
)
def test_refuses_what_cannot_be_wrapped(wrapping: Wrapping, message: str) -> None:
    rows = [_row("tokens"), _row("blocks.0.a"), _row("blocks.1.a"), _row("head", shares="tokens")]
    toy = model(rows).model_copy(update={"lists": ("blocks",)})
    with pytest.raises(SpecError, match=message.replace("*", r"\*").replace(".", r"\.")):
        chains(toy, wrapping)


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ("layers.*+head", ("layers.*", "head")),
        (["layers.*"], ("layers.*",)),
        ({"min_params": "100M"}, 100_000_000),
        ("min_params=1.5B", 1_500_000_000),
        (20_000, 20_000),
    ],
)
def test_reads_what_is_wrapped(said: object, read: Wrapping) -> None:
    assert Parallel.model_validate({"shard": "parameters", "wrap": said}).wrap == read


@pytest.mark.parametrize(
    "fields",
    [
        {"wrap": ["a"]},
        {"wrap": [], "shard": "parameters"},
        {"wrap": {"min_params": "many"}, "shard": "parameters"},
        {"wrap": 0, "shard": "parameters"},
        {"wrap": "a..b", "shard": "parameters"},
    ],
)
def test_refuses_what_says_no_wrapping(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"wrap|min_params"):
        Parallel.model_validate(fields)
