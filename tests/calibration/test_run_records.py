"""Is a file of measured runs read as it is written, and everything wrong in it named? Oracle: small files written here."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibration.run_columns import COLUMNS
from calibration.run_records import read_records, read_table
from sim.spec.yaml import SpecError

HEADER = "hardware,workload,role,step_time_s,nodes,placement,exposed_sync_s\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "runs.csv"
    path.write_text(text)
    return path


def test_values_arrive_in_their_fields(tmp_path: Path) -> None:
    record_file = read_records(written(tmp_path, "# a comment\n" + HEADER + '"a","b",network,0.25,2,1+1,0.05\n\nc,d,compute,1,,,\n'))
    first, second = record_file.records
    assert (first.line, first.hardware, first.role, first.step_time, first.nodes, first.placement) == (3, "a", "network", 0.25, 2, "1+1")
    assert (second.line, second.nodes, second.placement, second.exposed_sync) == (5, None, None, None)
    assert record_file.notes == ()


def test_every_column_of_the_schema_is_known(tmp_path: Path) -> None:
    assert read_records(written(tmp_path, ",".join(COLUMNS) + "\n,a,b,,,,,,,,,,,,0.5,,,prediction,\n")).notes == ()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "runs.csv: is empty"),
        (HEADER, "has no rows"),
        ("hardware,workload,step_time_s\na,b,1\n", "runs.csv:1: column 'role' is missing"),
        ("hardware,workload,role,step_time\n", "unknown column 'step_time'; did you mean 'step_time_s'?"),
        ("hardware,workload,role,batch\n", "unknown column 'batch'; did you mean 'batch_per_gpu'? It counts samples per GPU"),
        ("hardware,model,role,step_time_s\n", "unknown column 'model'; did you mean 'workload'?"),
        ("hardware,workload,role,step_time_ms\n", "unknown column 'step_time_ms'; did you mean 'step_time_s'? It is in seconds."),
        ("hardware,workload,role,step_time_s,Images/s,throughput\n", "'throughput'; did you mean 'throughput_samples_per_s'?"),
        ("hardware,workload,role,role\n", "column 'role' appears twice"),
        ("hardware,workload,role\na,b,compute\n", "expected a column step_time_s or throughput_samples_per_s"),
        ("nodes,step\n1,2\n", "runs.csv:1: columns 'hardware', 'workload', 'role' are missing; the columns are source, hardware"),
        ("nodes\n1\n", "runs.csv:1: expected a column step_time_s or throughput_samples_per_s"),
        ("model,dtype\na,b\n", "runs.csv:1: columns 'hardware', 'role' are missing"),
        ("model,dtype\na,b\n", "runs.csv:1: unknown column 'dtype'; did you mean 'precision'?"),
        (
            "hardware;workload;nodes\na;b;1\n",
            "runs.csv:1: appears to be separated by semicolons; save it with commas, and with decimal points in numbers",
        ),
        ("hardware\tworkload\trole\tstep_time_s\n", "runs.csv:1: appears to be separated by tabs"),
        ("Machine;Model;Throughput\n", "appears to be separated by semicolons"),
        (HEADER + "a,b,predict,1,,,\n", "runs.csv:2: role: 'predict' is unknown; did you mean 'prediction'?"),
        (HEADER + "a,,network,1,,,\n", "runs.csv:2: workload is blank"),
        (HEADER + "a,b,network,-1,,,\n", "runs.csv:2: step_time_s: '-1' is not a number above 0"),
        (HEADER + "a,b,network,nan,,,\n", "step_time_s: 'nan'"),
        (HEADER + "a,b,network,1,1.5,,\n", "nodes: '1.5' is not a whole number"),
        (HEADER + "a,b,network,,,,\n", "give step_time_s or throughput_samples_per_s"),
        (HEADER + "a,b,network,1,,,2\n", "exposed_sync_s 2 must be less than the step time"),
        (HEADER + "a,b,network,1,,,,,\n", "9 values for 7 columns"),
        ("hardware;workload;role;step_time_s\na;b;network;0,2\n", "appears to be separated by semicolons; save it with commas"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(SpecError) as raised:
        read_records(written(tmp_path, text))
    assert problem in str(raised.value)


def test_all_problems_come_at_once(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as raised:
        read_records(written(tmp_path, HEADER + "a,,network,1,,,\n" * 25))
    lines = str(raised.value).splitlines()
    assert len(lines) == 21 and lines[-1].endswith("and 5 more problems like these")


def test_a_row_has_all_its_problems(tmp_path: Path) -> None:
    header = "hardware,workload,role,step_time_s,nodes,precision,seq_len,tp\n"
    (skipped,) = read_table(written(tmp_path, header + "a,,test,-1,1.5,int8,long,2\n")).skipped
    starts = ("workload is blank", "role: 'test'", "nodes: '1.5'", "precision: 'int8'", "step_time_s: '-1'", "tp 2: ", "sequence 'long'")
    assert [start for start in starts if not any(line.startswith(start) for line in skipped.reason.splitlines())] == []
    assert len(skipped.reason.splitlines()) == len(starts)


def test_names_of_other_tables_with_one_meaning_are_read_and_others_refused(tmp_path: Path) -> None:
    text = "Machine,model,World Size,global_batch_size,iteration_time_ms,framework\na,b,16,512,250,NaN\n"
    table = read_table(written(tmp_path, text))
    (row,) = table.records
    assert (row.hardware, row.workload, row.total_gpus, row.global_batch, row.step_time) == ("a", "b", 16, 512, 0.25)
    assert row.role == "prediction" and row.stack is None and row.line == 2
    assert (
        len(table.notes) == 8 and "column 'World Size' was read as total_gpus" in table.notes[2] and "no column 'role'" in table.notes[-1]
    )
    for ambiguous in ("batch", "time", "throughput"):
        with pytest.raises(SpecError, match=f"unknown column '{ambiguous}'; did you mean"):
            read_table(written(tmp_path, f"hardware,workload,{ambiguous}\na,b,1\n"))


@pytest.mark.parametrize(
    ("name", "cell", "field", "value"),
    [
        ("Batch Size (per GPU)", "64", "batch_per_gpu", 64),
        ("Batch (per GPU)", "64", "batch_per_gpu", 64),
        ("Batch size per GPU", "64", "batch_per_gpu", 64),
        ("Step time", "0.192 s", "step_time", 0.192),
        ("Time per step", "192 ms", "step_time", 0.192),
        ("iteration_time", "0.1 min", "step_time", 6.0),
        ("sec/iter", "0.192", "step_time", 0.192),
        ("GPUs/node", "4", "gpus_per_node", 4),
    ],
)
def test_clear_names_of_batches_and_times_are_read(name: str, cell: str, field: str, value: float, tmp_path: Path) -> None:
    """A unit may be in the name or in the cells."""
    other, speed = ("images/s", "100") if field == "step_time" else ("ms/iter", "192")
    table = read_table(written(tmp_path, f"machine,model,{name},{other}\na,b,{cell},{speed}\na,c,{cell},{speed}\n"))
    assert [getattr(row, field) for row in table.records] == [value, value]
    assert any(f"column '{name}' was read as {field}" in note for note in table.notes)


@pytest.mark.parametrize(
    ("name", "cells", "says"),
    [
        ("Batch Size", ("64", "64"), "did you mean 'batch_per_gpu'? It counts samples per GPU and micro-batch; for samples per step"),
        ("step time", ("0.192", "0.2 s"), "did you mean 'step_time_s'? It is in seconds. It holds the time of one optimizer step"),
        ("time", ("0.192 s", "0.2 s"), "did you mean 'step_time_s'? It is in seconds. It holds the time of one optimizer step"),
    ],
)
def test_names_with_several_meanings_say_which_would_be_right(name: str, cells: tuple[str, str], says: str, tmp_path: Path) -> None:
    """Of a step without a unit in each cell, the unit is open; ``time`` can be that of an epoch or of the run."""
    with pytest.raises(SpecError) as raised:
        read_table(written(tmp_path, f"machine,model,{name}\n" + "".join(f"a,b,{cell}\n" for cell in cells)))
    assert f"unknown column '{name}'; {says}" in str(raised.value)


@pytest.mark.parametrize(
    ("rows", "counted"),
    [(["2,16", "4,32"], "total_gpus"), (["2,8", "4,16", "1,1"], "total_gpus"), (["2,32"], "total_gpus"), (["1,8", ",4"], "total_gpus"),
     (["2,16.0", "32,256.0"], "total_gpus"), (["4,2", "1,2"], "gpus_per_node"), (["2,8"], ""), (["2,8", "4,8"], "")],
)  # fmt: skip
def test_the_rows_tell_what_gpus_counts(rows: list[str], counted: str, tmp_path: Path) -> None:
    """Those of all nodes grow with the nodes, or are more than any machine has; those that the nodes do not divide are of each node."""
    path = written(tmp_path, "hardware,model,step_time_s,nodes,gpus\n" + "".join(f"a,b,1,{row}\n" for row in rows))
    if counted:
        table = read_table(path)
        assert f"column 'gpus' was read as {counted}" in " ".join(table.notes)
        assert [str(getattr(row, counted)).removesuffix(".0") for row in table.records] == [
            row.split(",")[1].removesuffix(".0") for row in rows
        ]
    else:
        with pytest.raises(SpecError, match="unknown column 'gpus'; did you mean 'gpus_per_node'"):
            read_table(path)


def test_tokens_per_second_are_read_where_all_units_are(tmp_path: Path) -> None:
    by_name = read_table(written(tmp_path, "hardware,model,tokens/s\na,b,40k\n"))
    by_unit = read_table(written(tmp_path, "hardware,model,throughput,unit\na,b,40000,tokens/s\na,b,40,k tokens/s\n"))
    assert [row.throughput_tokens for row in (*by_name.records, *by_unit.records)] == [40000, 40000, 40000]
    assert "tokens/s/gpu" in read_table(written(tmp_path, "hardware,model,tokens_per_s\na,b,40 tokens/s/gpu\n")).skipped[0].reason


@pytest.mark.parametrize(
    ("columns", "cells", "meant"),
    [("dataset", "ImageNet", "synthetic"), ("nodes", "1", "synthetic"), ("input", "real", "real"), ("input", "", None), ("set", "", None),
     ("real_or_synthetic_data", "real unless noted", "synthetic"), ("dataset,role", "ImageNet,prediction", "real")],
)  # fmt: skip
def test_a_table_that_describes_no_loader_reads_no_data(columns: str, cells: str, meant: str | None, tmp_path: Path) -> None:
    """The name of a data set says neither how many processes decode it nor with what; tables with roles are made for this program."""
    table = read_table(written(tmp_path, f"hardware,model,step_time_s,{columns}\na,b,1,{cells}\n"))
    assert table.records[0].input == meant
    assert any("no loader is described" in note for note in table.notes) == (meant == "synthetic")


def test_a_network_is_read_beside_a_model(tmp_path: Path) -> None:
    """Some tables call the model a network; then there is no workload."""
    table = read_table(written(tmp_path, "hardware,model,step_time_s,Interconnect\na,b,1,HDR200\na,b,1,\n"))
    assert [row.network for row in table.records] == ["HDR200", ""] and not any("ignored" in note for note in table.notes)
    with pytest.raises(SpecError, match="unknown column 'network'; did you mean 'workload'"):
        read_table(written(tmp_path, "hardware,network,step_time_s\na,b,1\n"))


def test_a_rate_has_its_unit_beside_it(tmp_path: Path) -> None:
    """A rate of samples is read; another, such as tokens, is listed with its unit."""
    rows = "a,b,1.5k,images/s\na,b,210,sequences/s\na,b,9,tokens/s\na,b,3,speedup\n"
    table = read_table(written(tmp_path, "system,model,throughput,unit\n" + rows))
    assert [row.throughput for row in table.records] == [1500, 210]
    assert ["tokens/s" in row.reason or "speedup" in row.reason for row in table.skipped] == [True, True]


def test_a_table_may_name_a_gpu_in_place_of_a_machine(tmp_path: Path) -> None:
    table = read_table(
        written(tmp_path, "gpu,system,model,accum,step_time_s,seq_len\nV100,,b,0,1,128.0\nT4,g4dn.xlarge,b,2,1,\n,,b,1,1,\n")
    )
    assert [(row.gpu, row.hardware, row.gradient_accumulation_steps) for row in table.records] == [
        ("V100", "", 1),
        ("T4", "g4dn.xlarge", 2),
    ]
    assert table.records[0].sequence == 128 and "hardware is blank" in table.skipped[0].reason
    assert read_table(written(tmp_path, "gpu,model,step_time_s\nV100,b,1\n")).records[0].gpu == "V100"


def test_a_row_of_a_table_without_a_role_is_only_predicted(tmp_path: Path) -> None:
    """It must not calibrate unless its author says so; committed records state every role."""
    path = written(tmp_path, 'hardware,workload,role,step_time_s\na,b,network,1\na,b,,2\na,b, ,3\na,b,"",4\n')
    table = read_table(path)
    assert [row.role for row in table.records] == ["network", "prediction", "prediction", "prediction"] and not table.skipped
    assert [note for note in table.notes if "blank role" in note] == [
        f"{path}:1: rows with a blank role are only predicted, not used for calibration"
    ]
    with pytest.raises(SpecError, match="role is blank"):
        read_records(path)


def test_a_name_beside_the_column_that_it_means_is_left_unread(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, "hardware,workload,role,step_time_s,model\na,b,network,1,c\n"))
    assert table.records[0].workload == "b" and "'model' is not part of a record" in table.notes[0]


def test_a_strange_column_is_noted(tmp_path: Path) -> None:
    assert "'color'" in read_records(written(tmp_path, "hardware,workload,role,step_time_s,color\na,b,network,1,red\n")).notes[0]


@pytest.mark.parametrize(
    ("column", "cell"),
    [("tp", "8"), ("Pipeline Parallel", "2"), ("zero_stage", "1"), ("shard", "parameters"), ("strategy", "FSDP"), ("strategy", "ZeRO-3"),
     ("sharding strategy", "FULL_SHARD"), ("parallelism", "tp8 pp2")],
)  # fmt: skip
def test_a_run_with_a_layout_is_none_of_data_parallelism(column: str, cell: str, tmp_path: Path) -> None:
    table = read_table(written(tmp_path, f"hardware,workload,step_time_s,{column}\na,b,1,{cell}\nc,d,1,\n"))
    assert [record.hardware for record in table.records] == ["c"]
    (skipped,) = table.skipped
    assert skipped.reason.startswith(f"{column} {cell}: rows of this table are data-parallel only; put runs with a layout in a table of")
    assert not [note for note in table.notes if "unread" in note]


@pytest.mark.parametrize(("column", "cell"), [("tp", "1"), ("zero_stage", "0"), ("shard", "none"), ("strategy", "ddp"), ("ep", "-")])
def test_columns_of_layouts_may_say_that_there_is_none(column: str, cell: str, tmp_path: Path) -> None:
    table = read_table(written(tmp_path, f"hardware,workload,step_time_s,{column}\na,b,1,{cell}\n"))
    assert len(table.records) == 1 and not table.skipped


def test_tokens_of_a_sample_are_read(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, "hardware,workload,step_time_s,seq_len\na,b,1,512\nc,d,1,\ne,f,1,long\n"))
    assert [record.sequence for record in table.records] == [512, None]
    assert [one.reason for one in table.skipped] == ["sequence 'long': write the number of tokens per sample, such as 4096"]


@pytest.mark.parametrize("digits", ["9" * 5000, "²"])
def test_digits_that_are_no_count_end_in_a_sentence(digits: str, tmp_path: Path) -> None:
    """Python reads no more than 4300 digits, and not all that it calls digits."""
    table = read_table(written(tmp_path, f"hardware,workload,step_time_s,seq_len,tp\na,b,1,{digits},1\nc,d,1,512,{digits}\n"))
    too_long, laid_out = (one.reason for one in table.skipped)
    assert too_long.startswith("sequence '") and too_long.endswith(": write the number of tokens per sample, such as 4096")
    assert laid_out.startswith("tp ") and "rows of this table are data-parallel only" in laid_out


def test_a_misspelled_role_is_no_table_without_roles(tmp_path: Path) -> None:
    """Without the column all rows are predicted; a misspelled one is an error like any other column."""
    path = tmp_path / "runs.csv"
    path.write_text("hardware,workload,step_time_s,rol\np3.2xlarge,resnet50,0.2,compute\n")
    with pytest.raises(SpecError, match="unknown column 'rol'; did you mean 'role'"):
        read_table(path)
    path.write_text("hardware,workload,step_time_s\np3.2xlarge,resnet50,0.2\n")
    assert read_table(path).records[0].role == "prediction"


def test_steps_of_years_are_mistakes(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("hardware,workload,step_time_s\np3.2xlarge,resnet50,1e300\np3.2xlarge,resnet50,0.2\n")
    (skipped,) = read_table(path).skipped
    assert skipped.reason == "step_time_s: '1e300' is not a number above 0, such as 0.25, and at most 1,000,000"
