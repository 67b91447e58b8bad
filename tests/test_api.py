"""Does a notebook see what the command line prints? Oracle: the JSON document, and the command's own output."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from calibration.traces.import_trace import import_traces
from sim.api import SpecError, compare, plan, simulate, sweep, whatif
from sim.cli import main
from sim.events import STALLS
from stallsim import load, run
from tests.report.page.reading import Page

OPTIONS = ["--nodes", "2", "--batch", "32", "--precision", "amp_fp16", "--set", "node.nic.bandwidth=50 Gbps", "--seed", "3", "--fast"]


def test_a_result_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "p3.16xlarge", "resnet50", "--json", *OPTIONS]) == 0
    printed = json.loads(capsys.readouterr().out)
    result = simulate(
        "p3.16xlarge", "resnet50", nodes=2, batch=32, precision="amp_fp16", overrides={"node.nic.bandwidth": "50 Gbps"}, seed=3
    )
    assert json.loads(json.dumps(result.document)) == printed
    assert result.step_time == printed["step_time_s"] and result.throughput == printed["throughput_samples_per_s"]
    assert result.stalls.time_s.sum() == pytest.approx(printed["step_time_s"]) and result.stalls.share.sum() == pytest.approx(1)
    by_cause = result.stalls.groupby("cause").time_s.sum()
    assert all(by_cause.get(cause.value, 0.0) == pytest.approx(printed["stalls_s"][cause.value]) for cause in STALLS)


def test_a_notebook_shows_a_table_and_a_picture(tmp_path: Path) -> None:
    result = simulate("p3.2xlarge", "resnet50")
    page = result._repr_html_()
    assert "resnet50 on p3.2xlarge" in page and page.count("<tr>") == 1 + (result.document["stalls_s"]["launch"] > 0) + 2
    picture = result.plot()
    assert picture._repr_png_().startswith(b"\x89PNG")
    picture.save(tmp_path / "stalls.png")
    assert (tmp_path / "stalls.png").read_bytes() == picture.png


def test_a_result_is_told_in_a_line() -> None:
    """A shell that shows a result, or a picture, is not flooded."""
    result = simulate("p3.2xlarge", "resnet50")
    said = repr(result)
    assert said.startswith("<resnet50 on p3.2xlarge, 1 GPU: ") and result.document["verdict"] in said and len(said) < 400
    assert len(repr(result.plot())) < 100
    assert len(repr(simulate("p3.16xlarge", "resnet18-and-vgg16")).splitlines()) == 2


def test_machines_are_compared_by_a_whole_job_where_one_is_asked_for() -> None:
    table = compare("resnet18", ["p3.2xlarge", "g4dn.xlarge"], hours=2)
    assert table.whole_job_time_s.tolist() == pytest.approx([7200, 7200]) and table.whole_job_epochs.is_monotonic_decreasing
    assert "whole_job" not in table and not any("whole_job" in name for name in compare("resnet18", ["p3.2xlarge"]))
    with pytest.raises(SpecError, match="epochs and hours: write one of the two"):
        compare("resnet18", ["p3.2xlarge"], epochs=3, hours=2)


def test_a_result_writes_its_trace(tmp_path: Path) -> None:
    result = simulate("p3.2xlarge", "resnet50")
    assert "3 steady-state steps" in result.trace(tmp_path / "trace.json.gz")
    assert import_traces([tmp_path / "trace.json.gz"]).step_time == pytest.approx(result.step_time, rel=1e-9)


def test_a_result_writes_its_page(tmp_path: Path) -> None:
    """Oracle: the result's own document, inside the page, with the use of links that only a second run keeps."""
    result = simulate("p3.8xlarge", "vgg11", nodes=2, market="spot")
    result.page(tmp_path / "page.html")
    page = Page((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert page.documents()["run"] == json.loads(json.dumps(result.document))
    assert page.documents()["view"]["jobs"][0]["links"] and result.document["price"]["market"] == "spot"
    result.plot().save(tmp_path / "stalls.svg")
    assert (tmp_path / "stalls.svg").read_bytes().startswith(b"<?xml")


def test_machines_stand_in_rows(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["p3.2xlarge", "p2.xlarge", "p3.16xlarge"]
    frame = compare("resnet50", names)
    assert main(["compare", "resnet50", *names, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)["rows"]
    assert list(frame.hardware) == [row["hardware"] for row in printed]
    assert list(frame.epoch_time_s) == [row["epoch_time_s"] for row in printed]
    assert [sum(row[f"{cause.value}_s"] for cause in STALLS) for _, row in frame.iterrows()] == pytest.approx(list(frame.step_time_s))


def test_a_machine_too_small_keeps_its_row() -> None:
    frame = compare("resnet50", ["p2.xlarge", "p3.2xlarge"], batch=160)
    assert list(frame.hardware) == ["p3.2xlarge", "p2.xlarge"]
    assert "largest batch that fits" in frame.problem.iloc[1]


def test_mistakes_are_sentences() -> None:
    with pytest.raises(SpecError, match=r"p3\.16xlarge"):
        simulate("p3.16xlarg", "vgg16")
    with pytest.raises(SpecError, match="sort="):
        compare("vgg16", ["p3.2xlarge"], sort="beauty")


def test_importing_it_imports_nothing_heavy() -> None:
    code = "import sys, sim.api; print(*(name for name in ('pandas', 'matplotlib', 'scipy', 'torch', 'networkx') if name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240).stdout.strip() == ""


def test_a_sweep_is_single_runs_side_by_side() -> None:
    frame = sweep("p3.8xlarge", "resnet18", {"node.nic.bandwidth": "10..40 Gbps:2", "batch": [16, 32]}, nodes=2)
    assert len(frame) == 4 and frame.problem.eq("").all()
    for point in frame.to_dict("records"):
        overrides = {"node.nic.bandwidth": point["node.nic.bandwidth"]}
        alone = simulate("p3.8xlarge", "resnet18", nodes=2, batch=int(point["batch"]), overrides=overrides)
        assert point["step_time_s"] == alone.step_time


def test_whatif_has_what_the_command_writes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", "p3.8xlarge", "alexnet", "--nodes", "2", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["resources"]
    frame = whatif("p3.8xlarge", "alexnet", nodes=2)
    assert list(frame.resource) == [row["resource"] for row in rows]
    assert list(frame.twice_step_time_s) == [row["twice"]["step_time_s"] for row in rows]


def test_whatif_of_a_layout_has_what_the_command_writes(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["whatif", "hgx-h100", "llama-3.2-1b", "--nodes", "1", "--tp", "2", "--shard", "optimizer", "--stack", "megatron-core"]
    assert main([*command, "--micro-batches", "2", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    layout = {"tp": 2, "shard": "optimizer"}
    frame = whatif("hgx-h100", "llama-3.2-1b", nodes=1, parallel=layout, stack="megatron-core", micro_batches=2)
    assert frame.to_dict("records") == said["resources"]
    assert frame.attrs["links"] == said["links"] and frame.attrs["step_time_s"] == said["step_time_s"]


def test_a_field_that_there_is_not_is_refused() -> None:
    with pytest.raises(SpecError, match="bandwidth"):
        sweep("p3.8xlarge", "resnet18", {"node.nic.bandwith": [1, 2]})


@pytest.mark.parametrize("seed", [-1, -(10**30)])
def test_negative_seeds_are_refused(seed: int) -> None:
    for call in (lambda: simulate("p3.16xlarge", "vgg16", seed=seed), lambda: sweep("p3.16xlarge", "vgg16", {"batch": [1, 2]}, seed=seed)):
        with pytest.raises(SpecError, match=rf"^seed={seed}: write 0 or more$"):
            call()


@pytest.mark.parametrize(
    ("call", "said"),
    [(lambda: plan("hgx-h100", "llama-3.1-8b", fix="tp=3"), "fix='tp=3': expected a mapping, such as {'tp': 8}"),
     (lambda: plan("hgx-h100", "llama-3.1-8b", allow="fp8"), r"allow='fp8': expected a list of strings, such as \['fp8'\]"),
     (lambda: plan("hgx-h100", "llama-3.1-8b", journal=5), "journal=5: expected a path"),
     (lambda: plan("hgx-h100", "llama-3.1-8b", export=5), "export=5: expected a path"),
     (lambda: run("hgx-h100", "llama-3.1-8b", parallel="tp=2"), "parallel='tp=2': expected a mapping, such as {'tensor': 8"),
     (lambda: compare("resnet18", ["p3.2xlarge"], parallel=["tp=2"]), r"parallel=\['tp=2'\]: expected a mapping"),
     (lambda: run(load("p3.2xlarge"), "resnet18"), r"hardware=<Hardware>: expected a catalog name or the path of a YAML file$"),
     (lambda: compare("resnet18", ["p3.2xlarge"], processes="2"), "processes='2': expected a whole number")],
)  # fmt: skip
def test_an_argument_of_another_type_is_told_what_is_expected(call: Callable[[], object], said: str) -> None:
    with pytest.raises(SpecError, match=f"^{said}"):
        call()


def test_a_description_that_does_not_exist_is_sought_among_machines_and_workloads() -> None:
    for name, near in (("hgx-h1000", "hgx-h100"), ("resnet51", "resnet50")):
        with pytest.raises(SpecError, match=f"^{name} is not in the catalog .*did you mean {near}"):
            load(name)


def test_a_sweep_takes_any_sequence_of_values() -> None:
    listed = sweep("p3.2xlarge", "resnet18", {"batch": [16, 32]})
    for values in (range(16, 48, 16), np.array([16, 32]), (16, 32), "16,32"):
        assert sweep("p3.2xlarge", "resnet18", {"batch": values}).step_time_s.tolist() == listed.step_time_s.tolist()


def test_a_comparison_carries_the_rest_of_its_document() -> None:
    table = compare("resnet18", ["p3.2xlarge", "g4dn.xlarge"])
    assert table.attrs["workload"] == "resnet18" and "rows" not in table.attrs and table.attrs["schema"] == 1


def test_module_paths_may_be_a_list() -> None:
    """As in a file, and as the text that joins them."""
    job = {"hardware": "hgx-h100", "workload": "gpt2", "nodes": 1}
    listed, joined = (run(**job, parallel={"shard": "parameters", "wrap": wrap}) for wrap in (["layers.*"], "layers.*"))
    assert listed.step_time == joined.step_time
    pipeline = {"pp": 2, "tp": 2}
    cut, both = (run(**job, parallel=pipeline | {"cuts": cuts}, micro_batches=2) for cuts in (["layers.4"], ("layers.4",)))
    assert cut.step_time == both.step_time
    with pytest.raises(SpecError, match=r"^stage 5: a pipeline of 2 has stages 0 to 1$"):
        cut.memory_over_time(5)
    with pytest.raises(SpecError, match=r"^stage -1: a pipeline of 2 has stages 0 to 1$"):
        cut.memory_over_time(-1)


def test_integers_of_numpy_are_whole_numbers() -> None:
    count = np.int64(2)
    assert (
        run("p3.16xlarge", "vgg16", nodes=count, batch=np.int32(32)).step_time == run("p3.16xlarge", "vgg16", nodes=2, batch=32).step_time
    )
    assert set(compare("resnet18", ["p3.2xlarge"], nodes=[np.int64(1), count]).nodes) == {1, 2}
    with pytest.raises(SpecError, match=r"^nodes=np.float64\(2.0\): expected a whole number$"):
        run("p3.16xlarge", "vgg16", nodes=np.float64(2.0))


def test_none_is_the_null_of_a_file() -> None:
    with pytest.raises(
        SpecError, match=r"^overrides\['training.batch'\]=null: null is not a whole number; write a whole number, 1 or more$"
    ):
        run("p3.16xlarge", "vgg16", overrides={"training.batch": None})
