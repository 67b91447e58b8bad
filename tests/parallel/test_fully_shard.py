"""Oracle: torch's own ``fully_shard`` under a fake process group sends the same in the same order, and copies the same bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Self

import pytest

from sim.analysis.layout_memory import StageMemory, memory_by_stage, memory_timeline
from sim.spec.model import Model
from sim.spec.workload import Workload
from tests.harness import toy_node, toy_workload
from tests.late import Late, torch
from tests.parallel.layouts import block_model, copied, layout, sent
from tests.parallel.recorder import Recorder, fake_group, nbytes_of

pytestmark = pytest.mark.needs("torch")
nets: Any = Late("tests.parallel.sharded_nets")
RANKS = 16
GPU = toy_node(1).gpu


@pytest.fixture(autouse=True, scope="module")
def _group() -> Iterator[None]:
    with fake_group(RANKS):
        yield


MESHES: list[tuple[int, int]] = [(1, 2), (1, 4), (1, 8), (2, 2), (2, 4), (4, 4)]


def _table(net: Any) -> Model:
    """Return the layer table of *net*: a row for each module that holds parameters."""
    sizes, frozen = {}, []
    for path, module in net.named_modules():
        name = path.removeprefix("last.")
        if own := list(module.parameters(recurse=False)):
            sizes[name] = [parameter.numel() for parameter in own]
            if not own[0].requires_grad:
                frozen.append(name)
    return block_model(sizes, frozen)


def _sharded(net: Any, mesh: tuple[int, int], reshard: bool | int | None, root: bool, listed: bool = True) -> None:
    """Wrap *net* with ``fully_shard`` as torchtitan does, norm and head *listed* or as one module; or its blocks and the *root* alone."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    replicate, shard = mesh
    ranks = torch.arange(replicate * shard)
    names = ("replicate", "shard")
    device = DeviceMesh("cpu", ranks.reshape(mesh), mesh_dim_names=names) if replicate > 1 else DeviceMesh("cpu", ranks)
    keys: dict[str, Any] = {"mesh": device, "mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)}
    wanted = True if reshard is None else reshard
    if not root:
        fully_shard(net.tokens, reshard_after_forward=wanted, **keys)
    for block in net.layers:
        fully_shard(block, reshard_after_forward=wanted, **keys)
    if not root:
        fully_shard([net.last.norm, net.last.head] if listed else net.last, reshard_after_forward=reshard is True, **keys)
    fully_shard(net, reshard_after_forward=reshard is True, **keys)


def _of_torch(net: Any, micro_batches: int, each: bool) -> tuple[list[tuple[str, int, float]], dict[str, float]]:
    with Recorder() as recorder:
        for number in range(micro_batches):
            net.set_requires_gradient_sync(each or number == micro_batches - 1)
            net(torch.zeros(1, 2, dtype=torch.long)).float().sum().backward()
    return recorder.seen, recorder.copied


def _compared(name: str, mesh: tuple[int, int], reshard: bool | int | None, root: bool, micro_batches: int, each: bool) -> str | None:
    torch.manual_seed(0)
    net = nets.MODELS[name]()
    table = _table(net)
    _sharded(net, mesh, reshard, root)
    theirs, copies = _of_torch(net, micro_batches, each)
    fields = {"shard": "parameters", "replicate": mesh[0], "reshard_after_forward": reshard}
    made = layout(table, mesh[0] * mesh[1], micro_batches=micro_batches, synchronizes_each=each, stack={"root": root}, **fields)
    ours = sent(made)
    if ours == theirs:
        case = f"{name} on {mesh}, reshard {reshard}, root {root}, {micro_batches} micro-batches{' each' if each else ''}"
        return None if copied(made) == pytest.approx(copies) else f"{case}: copies {copied(made)}, torch's {copies}"
    at = next((index for index, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), min(len(ours), len(theirs)))
    case = f"{name} on {mesh}, reshard {reshard}, root {root}, {micro_batches} micro-batches{' each' if each else ''}"
    return f"{case}: operation {at} is {ours[at : at + 2]}, torch's {theirs[at : at + 2]}"


def _cases() -> Iterator[Mapping[str, Any]]:
    """Yield every model on every mesh, freed after forward or not, wrapped as torchtitan does or not; then gradient accumulation."""
    plain: dict[str, Any] = {"micro_batches": 1, "each": False}
    for number, name in enumerate(nets.MODELS):
        for index, mesh in enumerate(MESHES):
            reshard = (None, False, True)[(index + number) % 3]
            yield plain | {"name": name, "mesh": mesh, "reshard": reshard, "root": (index + number) % 2 == 1}
    for name in ("frozen above",):
        for reshard, root, each in (
            (None, False, False),
            (None, True, True),
            (False, False, True),
            (False, True, False),
            (True, False, False),
        ):
            yield {"name": name, "mesh": (1, 4), "reshard": reshard, "root": root, "micro_batches": 3, "each": each}
        for mesh in ((1, 4), (1, 8), (2, 4)):  # freed to groups of two
            yield {"name": name, "mesh": mesh, "reshard": 2, "root": mesh == (1, 8), "micro_batches": 2, "each": False}


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_sends_what_fully_shard_sends() -> None:
    wrong = [text for case in _cases() if (text := _compared(**case))]
    assert not wrong, "\n".join(wrong)


# --- one rank -----------------------------------------------------------------------------------------------------------


class _LoneCopies(Recorder):
    """Adds up what FSDP2 copies on a mesh of one rank, which gathers and reduces nothing."""

    def __enter__(self) -> Self:
        from torch.distributed.fsdp._fully_shard import _fsdp_param_group as group

        self._what = ""
        self._patch = pytest.MonkeyPatch()
        for owner, name, what in ((group.FSDPParamGroup, "wait_for_unshard", "weights"), (group, "foreach_reduce", "gradients")):
            self._patch.setattr(owner, name, self._inside(getattr(owner, name), what))
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        self._patch.undo()
        super().__exit__(*error)

    def _inside(self, function: Any, what: str) -> Any:
        def called(*args: Any, **kwargs: Any) -> Any:
            self._what = what
            made = function(*args, **kwargs)
            self._what = ""
            return made

        return called

    def _called(self, func: Any, args: Any, kwargs: Any) -> Any:
        made = func(*args, **kwargs)
        kernel = func._overloadpacket.__name__
        if func.namespace == "c10d":
            self.seen.append((kernel, 1, 0.0))
        if self._what and kernel in ("_to_copy", "copy_", "chunk_cat", "div"):
            written = kwargs["out"] if kernel == "chunk_cat" else made
            read = args[1] if kernel == "copy_" else args[0]
            self.copied[self._what] = self.copied.get(self._what, 0.0) + nbytes_of(read) + nbytes_of(written)
        return made


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("divides", [False, True])
def test_one_rank_copies_what_fully_shard_copies(divides: bool) -> None:
    """Weights are cast and copied; gradients are put together, divided by a factor that is given, and copied into the shards."""
    for name in nets.MODELS:
        for reshard in (None, False, True):
            torch.manual_seed(0)
            net = nets.MODELS[name]()
            table = _table(net)
            _sharded(net, (1, 1), reshard, False)
            if divides:
                for module in net.modules():
                    if hasattr(module, "set_gradient_divide_factor"):
                        module.set_gradient_divide_factor(1.0)
            with _LoneCopies() as recorder:
                net(torch.zeros(1, 2, dtype=torch.long)).float().sum().backward()
            made = layout(table, 1, shard="parameters", reshard_after_forward=reshard, stack={"divides_gradients": divides})
            assert sent(made) == recorder.seen == []
            assert copied(made) == pytest.approx(recorder.copied), (name, reshard)


# --- memory --------------------------------------------------------------------------------------------------------------


def adam_workload() -> Workload:
    return toy_workload(optimizer="adam")


def _tracked(net: Any, steps: int = 2) -> dict[str, float]:
    """Return the bytes of each kind at the fullest moment of the second step that torch's tracker sees, on one token."""
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker

    class Tracker(FSDPMemTracker):
        """Says what temporary bytes are: in the hooks before a block what is gathered into, else gradients."""

        def _update_peak_stats(self, peak_state: Any) -> None:
            before = dict(self._peak_mem)
            super()._update_peak_stats(peak_state)
            if self._peak_mem != before:
                (snapshot,) = self._peak_mem_snap.values()
                snapshot["gathers" if self._fsdp_state.name.startswith("PRE") else "gradients"] = snapshot["Temp"]

    adam = torch.optim.Adam([parameter for parameter in net.parameters() if parameter.requires_grad], fused=True)
    tracker = Tracker(net, adam)
    numbers = torch.zeros(1, 1, dtype=torch.long)
    tracker.track_inputs((numbers,))
    with tracker:
        for step in range(steps):
            net(numbers).float().sum().backward()
            adam.step()
            adam.zero_grad()
            if step == 0:
                tracker.reset_mod_stats()
    (peak,) = tracker.get_tracker_snapshot("peak").values()
    return {getattr(kind, "value", kind): float(size) for kind, size in peak.items()}


def _memory_compared(name: str, mesh: tuple[int, int], reshard: bool | None) -> list[str]:
    """Return the kinds of memory that differ by more than 5 % at the fullest moment.

    Of moments that are equally full here, to 1 %, the few bytes of activations decide in torch; the one that is nearest is compared.
    """
    torch.manual_seed(0)
    net = nets.MODELS[name]()
    table = _table(net)
    _sharded(net, mesh, reshard, False, listed=False)  # the tracker's hooks take modules of a list apart
    theirs = _tracked(net)
    made = layout(table, mesh[0] * mesh[1], shard="parameters", replicate=mesh[0], reshard_after_forward=reshard)
    (fullest,) = memory_by_stage(made, adam_workload(), GPU)
    course = memory_timeline(made, adam_workload(), GPU, 0)
    equally = [moment for moment in course if moment.allocated == pytest.approx(fullest.allocated, rel=0.01)]
    case = f"{name} on {mesh}, reshard {reshard}"
    wrong = [[f"{case}: {text}" for text in _kinds_apart(own, theirs)] for own in equally]
    return min(wrong, key=len)


def _kinds_apart(own: StageMemory, theirs: Mapping[str, float]) -> list[str]:
    gathered = sum(theirs.get(kind, 0.0) for kind in ("Unsharded Param", "All Gather", "gathers"))
    gradients = sum(theirs.get(kind, 0.0) for kind in ("Sharded Grad", "Unsharded Grad", "Reduce Scatter", "gradients"))
    pairs = {
        "weights": (own.weights, theirs["Sharded Param"]),
        "states": (own.optimizer_state, theirs["OptState"]),
        "gathered weights": (own.gathered, gathered),
        "gradients": (own.gradients, gradients),
        "all": (own.allocated, theirs["Total"] - theirs["Activation"]),
    }
    return [f"{kind} {mine:.0f}, torch's {his:.0f}" for kind, (mine, his) in pairs.items() if abs(mine - his) > 0.05 * his]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_memory_by_kind_is_that_of_torchs_tracker() -> None:
    """The tables have no activations, the models next to none, so that weights decide which moment is the fullest."""
    cases = [("feed", (1, 4), None), ("uneven", (1, 8), None), ("decoder", (1, 2), False), ("one block", (2, 2), None)]
    cases += [
        ("feed", (1, 1), None),
        ("decoder", (1, 1), False),  # of one rank, the tracker keeps a block's last gradient alive, which is little here
        ("adapters", (2, 4), True),
        ("frozen below", (4, 4), None),
        ("frozen below", (1, 2), None),
        ("uneven", (1, 2), None),
        ("frozen above", (1, 2), False),
    ]
    wrong = [text for case in cases for text in _memory_compared(*case)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_memory_by_kind_is_that_of_torchs_tracker_on_every_mesh() -> None:
    """Seven models on six meshes, freed after forward or not.

    Those where one product is most of a block (``uneven``, ``frozen above``) hold its gradient beside the reduce-scatter, and a copy of
    what a rank gathers from.
    """
    wrong = [
        text for name in nets.MODELS for mesh in MESHES for reshard in (None, False, True) for text in _memory_compared(name, mesh, reshard)
    ]
    assert not wrong, "\n".join(wrong)
