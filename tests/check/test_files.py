"""Oracle: files broken by hand, one per kind; and the shipped catalog, which must be right."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.check import validate, validate_path
from sim.spec import catalog
from tests.spec.documents import FILES


def test_the_toy_catalog_is_right_and_every_file_is_known_for_what_it_is() -> None:
    verdicts = validate()
    assert [verdict.problems for verdict in verdicts] == [[]] * len(verdicts)
    kinds = {"gpus": "gpu", "links": "link", "cpus": "cpu", "transports": "transport", "volumes": "volume", "jobs": "jobs",
             "models": "model",
             "datasets": "dataset", "stacks": "stack", "hardware": "hardware", "workloads": "workload"}  # fmt: skip
    kind_by_file = {Path(verdict.file).stem: verdict.kind for verdict in verdicts if verdict.file}
    assert kind_by_file == {Path(name).stem: kinds[Path(name).parent.name] for name in FILES}


@pytest.mark.parametrize("name", FILES)
def test_the_kind_of_a_file_elsewhere_is_told_by_its_keys(name: str, library: Path, tmp_path: Path) -> None:
    path = tmp_path / "elsewhere" / "file.yaml"
    path.parent.mkdir()
    path.write_text(FILES[name])
    [verdict] = validate([str(path)])
    assert (verdict.problems, verdict.kind) == ([], validate([str(library / name)])[0].kind)


@pytest.mark.parametrize(("origin", "kind"), [("toy", "hardware"), ("toy-job", "workload"), ("nothing", "")])
def test_a_file_that_only_extends_another_is_of_its_kind(origin: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"extends: {origin}\nname: mine\n")
    [verdict] = validate([str(path)])
    assert (verdict.kind, not verdict.problems) == (kind, bool(kind))


def test_in_the_whole_catalog_an_estimate_counts_where_it_stands(library: Path) -> None:
    counts = {Path(verdict.file).stem: len(verdict.estimates) for verdict in validate()}
    assert {name: count for name, count in counts.items() if count} == {"toy": 4, "toy-gpu": 2, "toy-job": 1}
    [alone] = validate(["toy"])
    assert len(alone.estimates) == 6


def test_names_and_paths_of_any_kind_are_found(library: Path) -> None:
    assert [verdict.kind for verdict in validate(["toy", "toy-gpu", "plain", "toy-job", str(library / "hardware/toy.yaml")])] == [
        "hardware", "gpu", "stack", "workload", "hardware",
    ]  # fmt: skip


def test_a_folder_stands_for_its_files(library: Path) -> None:
    assert len(validate([f"{library}/hardware/parts/"])) == len([name for name in FILES if "/parts/" in name])


def test_every_problem_of_every_file_is_told(library: Path) -> None:
    (library / "hardware/parts/gpus/toy-gpu.yaml").write_text(FILES["hardware/parts/gpus/toy-gpu.yaml"].replace("16 GiB", "16 MiB"))
    (library / "workloads/stacks/plain.yaml").write_text("name: [")
    problems = [problem.replace(str(library), "") for verdict in validate() for problem in verdict.problems]
    assert problems == [
        "/hardware/parts/gpus/toy-gpu.yaml:4:1: node.gpu.memory: 16.8 MB is implausible; write 1 GB to 10 TB",
        "/workloads/stacks/plain.yaml:1:8: not valid YAML: did not find expected node content",
        "/hardware/parts/gpus/toy-gpu.yaml:4:1: memory: 16.8 MB is implausible; write 1 GB to 10 TB",
        "/workloads/stacks/plain.yaml:1:8: not valid YAML: did not find expected node content",
        "/workloads/stacks/plain.yaml:1:8: not valid YAML: did not find expected node content",  # of the jobs that use it
    ]


def test_names_must_be_those_of_files_and_belong_to_one(library: Path) -> None:
    (library / "hardware/twin.yaml").write_text("extends: toy\nname: twin\naliases: [TOY]\n")
    (library / "hardware/odd.yaml").write_text("extends: toy\nname: even\n")
    [across] = [verdict for verdict in validate() if not verdict.file]
    assert [problem.replace(str(library), "") for problem in across.problems] == [
        "/hardware/odd.yaml: name: 'even' differs from the file name; write odd",
        f"/hardware/twin.yaml: 'TOY' is also a name of {library}/hardware/toy.yaml; choose another".replace(str(library), ""),
    ]


def test_what_cannot_be_read_has_a_verdict_too(tmp_path: Path) -> None:
    strange = tmp_path / "strange.yaml"
    strange.write_text("zzz: 1\n")
    assert validate_path("nothing") == ["nothing is not in the catalog (workloads/); known: toy-job"]
    deep = tmp_path / "folder-of-a-long-name" / "with-another-one-below-it" / "no.yaml"
    assert validate_path(str(deep))[0].startswith(f"{deep}: no such file")
    strange.write_text("groupz: []\n")
    assert validate_path(str(strange)) == [f"{strange}:1:1: unknown key 'groupz'; did you mean 'groups'?"]
    strange.write_text("extends: toyy\n")
    assert validate_path(str(strange)) == [f"{strange}:1:1: extends: 'toyy' is not in the catalog; did you mean toy?"]
    strange.write_text("extends: sia-azur\n")  # a machine of the committed records, which a file can extend
    assert validate_path(str(strange)) == [f"{strange}:1:1: extends: 'sia-azur' is not in the catalog; did you mean sia-azure or sia-quad?"]
    (tmp_path / "a.yaml").write_text("extends: toy\nname: my-box\n")
    strange.write_text("extends: my-box\n")
    [problem] = validate_path(str(strange))
    assert problem.endswith(f"'my-box' is not in the catalog; {tmp_path}/a.yaml has this name: write a, the file's name")
    strange.write_text("name: strange\nextends: no.yaml\n")
    assert validate_path(str(strange)) == [f"{strange}:2:1: extends: 'no.yaml': no such file"]
    strange.write_text("zzz: 1\n")
    [problem] = validate_path(str(strange))
    assert problem.startswith(f"{strange}: unknown kind of description; a file can hold a hardware, workload, gpu,")


def test_the_shipped_catalog_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    verdicts = validate()
    assert len(verdicts) > 100
    assert [problem for verdict in verdicts for problem in verdict.problems] == []
    assert all(estimate.reason != "no reason given" for verdict in verdicts for estimate in verdict.estimates)
    assert len([verdict for verdict in verdicts if verdict.file]) == sum(len(catalog.all_files(folder)) for folder in FOLDERS)


FOLDERS = sorted(
    {str(Path(name).parent) for name in FILES}
    | {
        "hardware/parts/kernels",
        "hardware/parts/lifetimes",
        "hardware/parts/reliability",
        "hardware/parts/stores",
        "hardware/parts/power",
        "hardware/parts/grids",
    }
)


@pytest.mark.parametrize(
    ("price", "says"),
    [
        ("{on_demand: 1 USD/h, date: 2999-01-01}", "price.date: 2999-01-01 is after today (2026-11-01); write the day of the price"),
        ("{spot: 1 USD/h, spot_date: 2026-12}", "price.spot_date: 2026-12 is after today (2026-11-01)"),
        ("{spot: 1 USD/h, spot_date: soon}", "price.spot_date: 'soon' is not a date; write for example 2026-07-20 or 2026-07"),
        ("{on_demand: 1 USD/h, date: 2026-02-30}", "price.date: '2026-02-30' is not a date"),
        ("{on_demand: 1 USD/h, date: 2026-11-02}", ""),  # tomorrow in another time zone
    ],
)
def test_dates_of_prices(price: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STALLSIM_TODAY", "2026-11-01")
    (tmp_path / "mine.yaml").write_text(f"extends: toy\nname: mine\nprice: {price}\n")
    (verdict,) = validate([str(tmp_path / "mine.yaml")])
    told = verdict.problems or verdict.notes
    assert len(told) == bool(says) and says in "".join(told)
    assert not verdict.problems or verdict.problems[0].startswith(f"{tmp_path / 'mine.yaml'}:3:")
