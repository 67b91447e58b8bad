"""Which software stack do the words in another table's framework column mean? The nearest one described, and what that assumes.

A table says ``TensorFlow 1.8 + Horovod``, ``NGC PyTorch 20.03`` or ``parameter server``. Words that name neither a known framework nor how
it exchanges gradients leave the cell unread, so that its row is refused with the cell's own words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Final, NamedTuple

from sim.spec.catalog import STACKS_FOLDER, all_files


class StackReading(NamedTuple):
    """The stack that a cell means, and what its words leave open, as text; empty if nothing."""

    stack: str
    assumed: str = ""


_TORCH: Final = (
    "accelerate", "ddp", "distributeddataparallel", "fairseq", "lightning", "nanogpt", "pytorch", "rocm", "timm", "torch", "torchrun",
    "transformers",
)  # fmt: skip
"""PyTorch, and what trains with its DistributedDataParallel."""
_FRAMEWORKS: Final[Mapping[str, str]] = {
    **dict.fromkeys(_TORCH, "torch"),
    **dict.fromkeys(("keras", "tensorflow", "tf", "tfcnnbenchmarks"), "tensorflow"),
    **dict.fromkeys(("gluon", "gluoncv", "gluonnlp", "mxnet"), "mxnet"),
    **dict.fromkeys(("paddle", "paddlepaddle"), "paddle"),
    "oneflow": "oneflow",
    "mindspore": "mindspore",
}
_SERVER_NAMES: Final = frozenset({"ps", "parameterserver", "parameterservers", "kvstore", "distsync", "distasync", "distdevicesync"})
_SERVERS: Final = _SERVER_NAMES | {"sync", "async"}
_REDUCTIONS: Final = frozenset({"allreduce", "nccl", "ring", "mirrored", "replicated"})
"""Words for exchanges that the stacks of the frameworks have anyway."""
_ALONGSIDE: Final = frozenset({
    "amp", "and", "apex", "backend", "benchmark", "benchmarks", "container", "cuda", "cudnn", "dali", "data", "distributed", "docker",
    "eager", "estimator", "example", "examples", "gpu", "graph", "grpc", "io", "module", "mpi", "multi", "native", "ngc", "node", "nvcr",
    "nvidia", "official", "openmpi", "parallel", "py", "single", "the", "version", "with",
})  # fmt: skip
"""Words that change nothing."""
_JOINED: Final[tuple[tuple[str, str], ...]] = (
    (r"parameter servers?", "parameterserver"),
    (r"tf cnn benchmarks", "tfcnnbenchmarks"),
    (r"dist device sync", "distdevicesync"),
    (r"dist (a?sync)", r"dist\1"),
    (r"all reduce", "allreduce"),
    (r"(?:multi ?worker ?)?mirrored ?strategy|multi ?worker ?mirrored", "mirrored"),
    (r"(a?sync)hronous", r"\1"),
    (r"\b(?:hf|hugging ?face|transformers) (?:transformers|accelerate|trainer)\b|\bhugging ?face\b", "transformers"),
    (r"\bcu\d+\b|(?<=tensorflow) gpu\b|(?<=paddlepaddle) gpu\b", ""),
    (r"\b(tf|tensorflow|torch|pytorch|mxnet|horovod|cuda|cudnn|nccl|rocm|py)v?(?=\d)", r"\1 "),
    (r"\bv(?=\d)", ""),
    (r"\b(\d+) x\b", r"\1"),
)
"""Terms of several words as one word, releases apart from names."""
_NEWEST_MINOR: Final = 98
"""Of a release without a minor one, such as PyTorch 2, the newest is meant."""
_RELEASES: Final[Mapping[str, tuple[tuple[tuple[int, int], str], ...]]] = {
    "torch": (
        ((1, 9), "torch-1.6-ddp"),
        ((1, 12), "torch-1.12-ddp"),
        ((1, 99), "torch-1.13-ddp"),
        ((2, 6), "torch-2.1-ddp"),
        ((99, 0), "torch-2.x-ddp"),
    ),
    "tensorflow": (
        ((1, 3), "tensorflow-1.1"),
        ((1, 4), "tensorflow-1.4"),
        ((1, 6), "tensorflow-1.5"),
        ((1, 99), "tensorflow-1.12"),
        ((99, 0), "tensorflow-2.3"),
    ),
    "paddle": (((1, 99), "paddle-1.8"), ((99, 0), "paddle-2.1")),
    "mxnet": (((99, 0), "mxnet-1.6-gluon"),),
    "oneflow": (((99, 0), "oneflow-0.2"),),
    "mindspore": (((99, 0), "mindspore-1.1"),),
}
"""Newest release of each framework that a stack stands for; without a release, the last."""
_FIRST_CONTAINER: Final = 17
"""Year of the first containers, from which a release is a year and a month; no framework has reached it."""
_FRAMEWORK_OF: Final[Mapping[str, str]] = {"pytorch": "torch", "tensorflow": "tensorflow", "mxnet": "mxnet"}
"""Frameworks by the names of NVIDIA's containers."""
_CONTAINER: Final = re.compile(rf"ngc-({'|'.join(_FRAMEWORK_OF)})-(\d\d)\.(\d\d)(-xla)?")
"""Names of the stacks in the catalog that stand for a container of NVIDIA, not for one model or memory format in it."""
_NEXT_MAJOR: Final[Mapping[str, tuple[tuple[int, int], str]]] = {
    "torch": ((23, 3), "torch-2.x-ddp"),
    "tensorflow": ((20, 12), "tensorflow-2.3"),
}
"""First container with the next major release of its framework (NVIDIA's support matrix: 23.03 has PyTorch 2), and the stack that stands
for such containers where none is described."""
_NAMES_OF: Final[Mapping[str, tuple[str, ...]]] = {"torch": ("torch", "pytorch"), "tensorflow": ("tensorflow", "tf"), "mxnet": ("mxnet",)}
_OF_TF_CNN_BENCHMARKS: Final = (1, 15)
"""Last release of TensorFlow that tf_cnn_benchmarks is written for (tensorflow/benchmarks, scripts/tf_cnn_benchmarks/README.md)."""
_SYNCHRONOUS: Final = (
    "workers wait for each other, as by default in tf_cnn_benchmarks (cross_replica_sync) and in MXNet (kvstore dist is dist_sync); "
    "write async if they do not"
)
_COSTS: Final = "costs on the servers are those measured for TensorFlow 1.10, and each GPU sends its own gradients"


def read_stack(text: str) -> StackReading:
    """Return the stack that *text* means: by name, or the nearest to its framework, release and exchange; *text* itself if unknown."""
    stacks = all_files(STACKS_FOLDER)
    if text.lower() in stacks:
        return StackReading(text)
    spelled = [name for name in stacks if _letters(name) == _letters(text)]
    if len(spelled) == 1:
        return StackReading(spelled[0])
    words = _words(text)
    frameworks = {_FRAMEWORKS[word] for word in words if word in _FRAMEWORKS}
    others = [word for word in words if word not in _FRAMEWORKS and not word.isdigit()]
    exchanges = _SERVERS | _REDUCTIONS | _ALONGSIDE | {"horovod"}
    if frameworks == {"tensorflow"} and (_release(words, ("tensorflow", "tf")) or (2, 0)) >= (2, 0):
        exchanges |= {"xla"}
    if len(frameworks) > 1 or not exchanges.issuperset(others):
        return StackReading(text)
    framework = next(iter(frameworks), "")
    if "horovod" in others:
        return _over_horovod(framework, words) or StackReading(text)
    if not _SERVER_NAMES.isdisjoint(others) or (framework == "tensorflow" and "grpc" in others):
        return _over_servers(framework, others)
    if framework in _NAMES_OF:
        release = _release(words, _NAMES_OF[framework])
        if ("ngc" in others) if release is None else release[0] >= _FIRST_CONTAINER:
            return _of_container(framework, release, "xla" in words)
    return _by_release(framework, words) if framework and _SERVERS.isdisjoint(others) else StackReading(text)


def _words(text: str) -> list[str]:
    plain = re.sub(r"[^a-z0-9]+", " ", text.lower()).strip()
    for pattern, word in _JOINED:
        plain = re.sub(pattern, word, plain)
    return plain.split()


def _letters(text: str) -> str:
    return re.sub("[^a-z0-9]", "", text.lower())


def _release(words: Sequence[str], names: Sequence[str], unstated: int = 0) -> tuple[int, int] | None:
    """Return major and minor release after the first of *names* in *words* that has one; None if none has.

    The minor release is *unstated* if only the major one is there.
    """
    for place, word in enumerate(words):
        numbers = [int(each) for each in takewhile(str.isdigit, words[place + 1 : place + 3])]
        if word in names and numbers:
            return numbers[0], numbers[1] if len(numbers) > 1 else unstated
    return None


def _by_release(framework: str, words: Sequence[str]) -> StackReading:
    names = _NAMES_OF.get(framework) or [word for word in words if _FRAMEWORKS.get(word) == framework]
    last = _RELEASES[framework][-1]
    release = _release(words, names, _NEWEST_MINOR) or (_OF_TF_CNN_BENCHMARKS if "tfcnnbenchmarks" in words else last[0])
    stack = next((stack for newest, stack in _RELEASES[framework] if release <= newest), last[1])
    if stack == "tensorflow-2.3" and "xla" in words:
        return StackReading("tensorflow-2.3-xla")
    if framework == "tensorflow" and stack != "tensorflow-2.3":
        return StackReading(stack, "each GPU has all variables, and each gradient is all-reduced on its own")
    if framework == "mxnet":
        return StackReading(stack, "gradients are all-reduced after the backward pass")
    return StackReading(stack)


def _of_container(framework: str, release: tuple[int, int] | None, xla: bool) -> StackReading:
    """Return the stack of NVIDIA's container *release* of *framework*, a year and a month: the nearest with the same major release.

    Without a release, the first container.
    """
    first_of_next, stack_of_next = _NEXT_MAJOR.get(framework, ((99, 0), ""))
    described = {
        (int(named[2]), int(named[3])): named[0]
        for named in map(_CONTAINER.fullmatch, all_files(STACKS_FOLDER))
        if named and _FRAMEWORK_OF[named[1]] == framework and bool(named[4]) == xla
    }
    if release is None:
        first = min(described)
        return StackReading(described[first], f"container {_month(first)}")
    alike = [month for month in described if (month >= first_of_next) == (release >= first_of_next)]
    if not alike:
        return StackReading(f"{stack_of_next}-xla" if xla else stack_of_next)
    nearest = min(alike, key=lambda month: abs(12 * (month[0] - release[0]) + month[1] - release[1]))
    return StackReading(described[nearest], "" if nearest == release else f"container {_month(nearest)}, the nearest that is described")


def _month(release: tuple[int, int]) -> str:
    return f"{release[0]}.{release[1]:02}"


def _over_horovod(framework: str, words: Sequence[str]) -> StackReading | None:
    """Return the stack with Horovod beneath *framework*; PyTorch if none is named."""
    if framework in ("", "torch"):
        release = _release(words, ["horovod"])
        return StackReading("horovod-0.19" if release is not None and release[1] <= 20 else "horovod-0.21")
    if framework == "tensorflow":
        release = _release(words, ["tensorflow", "tf", "keras"])
        if release is None:
            return StackReading("tensorflow-1.12-horovod", "TensorFlow 1")
        return StackReading("tensorflow-2.3-horovod" if release[0] >= 2 else "tensorflow-1.12-horovod")
    return StackReading("mxnet-1.6-gluon") if framework == "mxnet" else None


def _over_servers(framework: str, others: Sequence[str]) -> StackReading:
    costs = "" if framework == "tensorflow" else _COSTS
    if {"async", "distasync"} & set(others):
        return StackReading("tf-parameter-server", costs)
    assumed = "" if {"sync", "distsync", "distdevicesync"} & set(others) else _SYNCHRONOUS
    return StackReading("tf-parameter-server-sync", "; ".join(filter(None, (assumed, costs))))
