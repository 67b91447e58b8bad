"""Do tests that share loaded files and warnings see what the program would give them? Oracle: the program without what is kept."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sim.spec import catalog, elsewhere, extensions, library, yaml
from sim.spec.hardware import Hardware
from sim.spec.identity import content
from sim.spec.library import load_hardware, load_workload
from sim.spec.workload import Workload
from sim.spec.yaml import SpecError
from sim.study import scenario, sensitivity
from sim.study.scenario import Scenario, prepare
from tests.kept import is_plain, once_per_catalog_file, once_per_description

ROOT = catalog.roots()[0]
MACHINE = ROOT / "hardware" / "p3.2xlarge.yaml"


class Loads:
    """Counts the files that are really loaded."""

    def __init__(self) -> None:
        self.count = 0
        self.kept = once_per_catalog_file(self.each_time)

    def each_time(self, *arguments: Any) -> Any:
        self.count += 1
        return library._load.each_time(*arguments)  # type: ignore[attr-defined]

    def machine(self, *overrides: str, path: Path = MACHINE) -> Hardware:
        spec = self.kept(Hardware, path, overrides, None).spec
        assert isinstance(spec, Hardware)
        return spec


@pytest.fixture
def loads() -> Loads:
    return Loads()


def test_a_file_of_the_catalog_is_loaded_once_for_each_set_of_overrides(loads: Loads) -> None:
    assert loads.machine() is loads.machine()
    assert loads.machine("node.gpu=T4").first_workers.node.gpu.name == "T4"
    assert loads.machine("node.gpu=T4") is loads.machine("node.gpu=T4")
    assert loads.count == 2


def test_a_replaced_constant_reaches_descriptions(monkeypatch: pytest.MonkeyPatch) -> None:
    """And only until it is restored."""
    before = load_workload("llama-3.2-1b").spec.training.stack.name
    with monkeypatch.context() as patch:
        patch.setattr("sim.spec.defaults.REPLICATED_STACK", "torch-1.13-ddp")
        assert load_workload("llama-3.2-1b").spec.training.stack.name == "torch-1.13-ddp"
    assert load_workload("llama-3.2-1b").spec.training.stack.name == before == "torch-2.x-ddp"


def test_what_is_replaced_is_noticed_however_it_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    held: dict[str, int] = {"one": 1}
    for change in (
        lambda patch: patch.setattr(sensitivity, "CHANGE", 0.2),
        lambda patch: patch.setattr("sim.study.sensitivity.CHANGE", 0.2),
        lambda patch: patch.setitem(held, "one", 2),
        lambda patch: patch.delitem(held, "one"),
        lambda patch: patch.delattr(sensitivity, "CHANGE"),
    ):
        with pytest.MonkeyPatch.context() as patch:
            change(patch)
            assert not is_plain()
        assert is_plain() and held == {"one": 1} and sensitivity.CHANGE == 0.3
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.chdir(ROOT)
    assert is_plain()  # both are part of keys where they count


def test_a_file_that_an_override_names_is_that_of_the_current_folder(loads: Loads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it was written again since, with the same size and within a moment."""
    for folder, gpu in (("one", "T4"), ("two", "P100-PCIE-16GB"), ("two", "V100-SXM2-32GB")):
        (tmp_path / folder).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / folder)
        for name in ("own.yaml", "own"):
            Path(name).write_text(f"extends: {gpu}\nname: own\n", encoding="utf-8")
        for override in ("node.gpu=./own.yaml", "node.gpu=own.yaml", "node.gpu=own", f"node.gpu={Path.cwd() / 'own.yaml'}"):
            own, catalog = (loads.machine(each).first_workers.node.gpu for each in (override, f"node.gpu={gpu}"))
            assert own.peak == catalog.peak and own.name == "own"


def test_parts_are_those_of_the_catalog_in_use(loads: Loads, tmp_path: Path) -> None:
    """A name on the command line is looked for there; a catalog file's own parts are beside it."""
    for folder in ("hardware", "workloads"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    gpu = tmp_path / "hardware" / "parts" / "gpus" / "v100-sxm2-16gb.yaml"
    gpu.write_text(re.sub(r"(?m)^memory: .*$", "memory: 15 GiB", gpu.read_text(encoding="utf-8")), encoding="utf-8")
    memory: list[float] = []
    for root in (ROOT, tmp_path, ROOT):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(catalog, "roots", lambda root=root: [root])
            memory.append(loads.machine("node.gpu=V100-SXM2-16GB").first_workers.node.gpu.memory)
    assert memory == [16 * 2**30, 15 * 2**30, 16 * 2**30]


def test_a_catalog_file_that_is_written_again_is_loaded_again(tmp_path: Path) -> None:
    """The machine's, or that of a part."""
    shutil.copytree(ROOT / "hardware", tmp_path / "hardware")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalog, "roots", lambda: [tmp_path])
        loads = Loads()  # whose catalog is the copy from now on
    machine = tmp_path / "hardware" / MACHINE.name
    files = (machine, tmp_path / "hardware" / "parts" / "cpus" / "xeon-e5-2686-v4.yaml")
    for count, file in enumerate(files, 1):
        loads.machine(path=machine)
        loads.machine(path=machine)
        assert loads.count == count
        os.utime(file, ns=(count, count))
    loads.machine(path=machine)
    assert loads.count == len(files) + 1


def test_files_that_were_read_are_told_whoever_loaded_them_and_whatever_comes_of_it(loads: Loads) -> None:
    told = []
    for _ in range(2):
        with elsewhere.read_files() as files:
            loads.machine()
        told.append(files)
    assert told[0] == told[1] and MACHINE in told[0] and len(told[0]) > 2 and loads.count == 1
    for _ in range(2):
        with elsewhere.read_files() as files, pytest.raises(SpecError):
            loads.machine("node.gpu_count=many")
        assert MACHINE in files
    assert loads.count == 3  # errors are not kept


def test_an_extension_is_known_as_long_as_it_is_registered() -> None:
    class Mine:
        name = "mine"

        def buckets(self, *_: object) -> list[object]:
            return []

    override = ["training.stack.own_exchange=mine"]
    with pytest.raises(SpecError, match="mine"):
        load_workload("resnet50", override)
    extensions.register(extensions.EXCHANGES, Mine())
    try:
        assert not is_plain()
        assert load_workload("resnet50", override).spec.training.stack.exchange.own_exchange == "mine"
    finally:
        extensions._given[extensions.EXCHANGES.group].clear()
    with pytest.raises(SpecError, match="mine"):
        load_workload("resnet50", override)


def test_no_other_variable_of_the_environment_changes_a_description() -> None:
    """What a run computes is under these folders; the day is part of keys, and `terminal` only decides how text looks."""
    packages = ("analysis", "check", "cluster", "parallel", "report", "spec", "study", "training")
    program = ROOT / "sim"
    sources = [*(file for package in packages for file in (program / package).rglob("*.py")), *program.glob("*.py")]
    reading = [file for file in sources if re.search(r"os\.(environ|getenv)", file.read_text(encoding="utf-8"))]
    assert {str(file.relative_to(program)) for file in reading} == {"spec/days.py", "terminal.py", "__main__.py"}


def test_what_reads_documents_does_not_change_them() -> None:
    """Each is the same object for all tests of a process."""
    paths = [MACHINE, ROOT / "workloads" / "resnet50.yaml", ROOT / "workloads" / "stacks" / "torch-2.x-ddp.yaml"]
    before = [yaml.read(path) for path in paths]
    checked = prepare(Scenario("p3.2xlarge", "resnet50", ("node.gpu=T4", "training.batch=8", "node.nic.bandwidth=1 Gbps")))
    assert checked.jobs
    for path, document in zip(paths, before, strict=True):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sensitivity, "CHANGE", 0.2)  # so that it is parsed again
            again = yaml.read(path)
        assert again is not document and again.value == document.value and yaml.read(path) is document


# --- warnings about estimates ---------------------------------------------------------------------------------------------


class Warned:
    """Counts the descriptions whose estimates are really tried."""

    def __init__(self) -> None:
        self.count = 0
        self.kept = once_per_description(self.warnings)

    def warnings(self, hardware: Hardware, job: Any, progress: Any = None) -> list[str]:
        self.count += 1
        return sensitivity.estimate_warnings(hardware, job, progress)


@pytest.fixture
def checked() -> Iterator[Any]:
    yield prepare(Scenario("p3.2xlarge", "alexnet"))


def test_equal_runs_are_warned_of_once_and_tell_the_same_progress(checked: Any) -> None:
    warned, heard = Warned(), []
    for _ in range(2):
        each: list[tuple[int, int]] = []
        sentences = warned.kept(checked.hardware, checked.jobs[0], lambda done, of, each=each: each.append((done, of)))
        assert sentences == scenario.estimate_warnings(checked.hardware, checked.jobs[0])
        sentences.append("a reader may change its own list")
        heard.append(each)
    assert warned.count == 1 and heard[0] == heard[1] and len(heard[0]) > 2
    warned.kept(checked.hardware, replace(checked.jobs[0], placement=checked.jobs[0].placement, start=1.0))
    assert warned.count == 2


def test_a_replaced_constant_reaches_warnings(checked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    warned = Warned()
    before = warned.kept(checked.hardware, checked.jobs[0])
    monkeypatch.setattr(sensitivity, "NOTICEABLE", -1.0)
    assert len(warned.kept(checked.hardware, checked.jobs[0])) > len(before)


def test_a_default_that_is_written_is_covered_by_the_source_of_its_block(checked: Any) -> None:
    """Both descriptions have the same values, but only a written number is an estimate of the block's source."""
    node = checked.hardware.groups[0].node
    field = next(name for name in type(node.gpu).model_fields if name not in node.gpu.model_fields_set and getattr(node.gpu, name) == 1.0)
    gpu = type(node.gpu).model_construct(_fields_set={*node.gpu.model_fields_set, field}, **node.gpu.__dict__)
    group = checked.hardware.groups[0].model_copy(update={"node": node.model_copy(update={"gpu": gpu})})
    written = checked.hardware.model_copy(update={"groups": (group,)})
    assert content(written) == content(checked.hardware)
    warned = Warned()
    warned.kept(checked.hardware, checked.jobs[0])
    warned.kept(written, checked.jobs[0])
    assert warned.count == 2


def test_workloads_are_kept_apart_by_what_they_hold(checked: Any) -> None:
    warned, job = Warned(), checked.jobs[0]
    for workload in (job.workload, job.workload.model_copy(), load_workload("alexnet", ["training.batch=32"]).spec):
        assert isinstance(workload, Workload)
        warned.kept(checked.hardware, replace(job, workload=workload))
    assert warned.count == 2
    assert load_hardware("p3.2xlarge").spec.name == checked.hardware.name
