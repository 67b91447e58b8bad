"""The written table: reads back as it was, shows its totals, and is never half there."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.gpu import memory_time
from sim.extract import table
from sim.spec import yaml
from sim.spec.hardware import Gpu
from sim.spec.layer import Layer
from sim.spec.library import load_part, load_workload
from sim.spec.model import Model
from sim.spec.yaml import SpecError
from sim.study.scenario import Scenario, prepare
from sim.training.step_plan import plan_step
from tests.examples import examples

NAMES = st.one_of(
    st.text(min_size=1, max_size=12), st.sampled_from(["1", "1.0", "yes", "null", "12:30", "1e9", "- a", "a: b", "#x", "é", "{x}"])
)


def layer(name: str, **more: object) -> Layer:
    return Layer.model_validate({"name": name, "op": "conv", **more})


def model(*layers: Layer, name: str = "net", parameters: int = 10**9) -> Model:
    return Model.model_construct(
        name=name, command="", parameters=parameters, unused=parameters % 7, input=4.0, buffers=0.0, layers=layers, source="a test"
    )


@examples(
    8,
    None,
    st.lists(
        st.tuples(
            NAMES,
            st.integers(0, 2**53),
            st.lists(st.tuples(st.integers(1, 10**6), st.sampled_from(["fp32", "bf16", "fp64"])), max_size=3),
            st.integers(0, 9),
        ),
        min_size=1,
        max_size=5,
    ),
)
def test_reading_back_gives_the_same_model_and_the_same_bytes(rows: list[tuple[str, int, list[tuple[int, str]], int]]) -> None:
    written = model(
        *(
            layer(
                name,
                forward=f"{work} FLOP",
                backward_arithmetic=f"{work} FLOP",
                saved=f"{work} B",
                gradients=[elements for elements, _ in gradients],
                dtypes=[dtype for _, dtype in gradients],
                backward_kernels=kernels,
            )
            for name, work, gradients, kernels in rows
        )
    )
    text = table.render(written)
    read = Model.model_validate(yaml.parse(text).value)
    assert read == written
    assert table.render(read) == text


@given(st.dictionaries(NAMES, NAMES, max_size=3))
def test_any_keys_read_back(said: dict[str, str]) -> None:
    assert yaml.parse(f"source: {table.quote_word(said)}").value == {"source": said}


@pytest.mark.parametrize("number", [1e-6, 2.5e-7, 1e22, 0.5, 3, 1e-5])
def test_numbers_come_back_as_numbers(number: float) -> None:
    """YAML 1.1 takes 1e-06 for a string."""
    assert yaml.parse(f"factor: {table.quote_word(number)}").value == {"factor": number}


def test_totals_and_blocks_stand_in_comments() -> None:
    net = model(
        layer("stem", gradients=[10], forward="2 GFLOP", backward="2 GFLOP"),
        layer("block.0.conv", gradients=[20, 5], forward="1 GFLOP", backward="2 GFLOP", saved="3 MB"),
        layer("block.0.act"),
        parameters=40,
    )
    lines = table.render(net).splitlines()
    assert lines[0] == "# net: 35 trainable parameters in 3 tensors; 3 GFLOP forward, 4 GFLOP backward; stores 3 MB of activations"
    assert lines[1] == "# 5 of 40 parameters get no gradient (frozen or unused)."
    assert "  # block.0: 25 trainable parameters in 2 tensors; 1 GFLOP forward, 2 GFLOP backward; stores 3 MB of activations" in lines
    assert "  - {name: stem, op: conv, gradients: [10], forward: 2000000000 FLOP, backward: 2000000000 FLOP}" in lines


def test_a_failed_write_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "net.yaml"
    table.write(model(layer("a")), path)
    before = path.read_bytes()

    def fail(source: str, destination: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(SpecError, match=r"net.yaml: cannot be written: No space left on device"):
        table.write(model(layer("b")), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_an_output_that_is_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot be written"):
        table.write(model(layer("a")), tmp_path)


def test_editing_one_number_changes_the_step_by_what_it_says(tmp_path: Path) -> None:
    """Closed form: 10 MB more read by a layer that memory bounds are 10 MB a sample more at the GPU's reached bandwidth."""
    kept = (Path(__file__).parents[2] / "workloads/models/resnet18.yaml").read_text()
    line = next(line for line in kept.splitlines() if "name: layer1.0.bn1," in line)
    now = float(line.split("read: ")[1].split(" B")[0])
    (tmp_path / "net.yaml").write_text(kept.replace(line, line.replace(f"read: {now:.0f} B", f"read: {now + 1e7:.0f} B")))
    (tmp_path / "mine.yaml").write_text("extends: resnet18\nname: mine\nmodel: net.yaml\ntraining: {batch: 32}\n")
    gpu = load_part(Gpu, "v100-sxm2-16gb")
    before, after = (
        sum(segment.compute for _, segment in plan_step(load_workload(name, keys).spec, gpu, 1.0, 1).passes("F"))
        for name, keys in (("resnet18", ["training.batch=32"]), (str(tmp_path / "mine.yaml"), []))
    )
    assert after - before == pytest.approx(memory_time(32 * 1e7, gpu))


def test_editing_what_is_said_twice_is_refused_at_its_line(tmp_path: Path) -> None:
    """The total, or one gradient tensor of it: the message names the line of the total (or of the table) and the number."""
    kept = (Path(__file__).parents[2] / "workloads/models/resnet18.yaml").read_text()
    line = kept[: kept.index("parameters:")].count("\n") + 1
    for before, after, message in (
        (
            "parameters: 11689512",
            "parameters: 23379024",
            "write parameters: 11689512, or unused: 11689512 for parameters that no layer uses",
        ),
        ("gradients: [1000, 512000]", "gradients: [10, 5120]", "write parameters: 11181642, or unused: 507870 for parameters"),
        ("gradients: [1000, 512000]", "gradients: [2000, 1024000]", "write parameters: 12202512"),
    ):
        (tmp_path / "net.yaml").write_text(kept.replace(before, after))
        (tmp_path / "mine.yaml").write_text("extends: resnet18\nname: mine\nmodel: net.yaml\n")
        with pytest.raises(SpecError, match=rf"net.yaml:({line}:\d+: model.parameters|5:1: model): .*{message}"):
            prepare(Scenario("p3.2xlarge", str(tmp_path / "mine.yaml")))
