"""Is a table of transformer runs described to who has one? Oracle: the columns that the reader needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibration.cli import main
from calibration.llm.table import RATE_COLUMNS, REQUIRED_COLUMNS, column_notes, is_llm_table, read_table
from sim.spec.yaml import SpecError
from tests.calibration.llm.tables import table

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "calibrate.md"


def test_the_page_names_every_column_that_is_needed(tmp_path: Path) -> None:
    paragraph = PAGE.read_text(encoding="utf-8").split("This kind of table is for plain data parallelism")[1].split("\n\n")[0]
    assert not [name for name in (*REQUIRED_COLUMNS, *RATE_COLUMNS) if f"`{name}`" not in paragraph]
    made = tmp_path / "my-llm-runs.csv"
    made.write_text(",".join((*REQUIRED_COLUMNS, "step_time_s")) + "\nsome model" + "," * len(REQUIRED_COLUMNS) + "\n")
    assert is_llm_table(made) and len(read_table(made)) == 1


def test_a_table_of_a_few_columns_is_predicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A model of the catalog, data-parallel over a node; what the table lacks is assumed and said."""
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / "runs.csv"
    runs.write_text("model,seq_len,gpu,gpus,dp,global_batch,tokens_per_s_per_gpu\nLlama 3.1 8B,8192,H100,8,8,64,9500\n")
    assert main(["validate", str(runs), "-o", "out"]) == 0
    (written,) = [line for line in (tmp_path / "out" / "predictions.csv").read_text().splitlines() if "Llama" in line]
    assert "assumed" in (tmp_path / "out" / "predictions.csv").read_text().splitlines()[0] and "micro_batch 1" in written
    runs.write_text("model,seq_len,gpu,dp\nLlama 3.1 8B,8192,H100,8\n")
    capsys.readouterr()
    assert main(["validate", str(runs)]) == 2
    assert "columns missing: gpus, global_batch, step_time_s or tokens_per_s_per_gpu; blank" in capsys.readouterr().err
    runs.write_text("model,seq_len,gpu,dp,batch (tokens),speed\nLlama 3.1 8B,8192,H100,8,4M,3\n")
    assert main(["validate", str(runs)]) == 2
    assert "tokens_per_s_per_gpu; not read: 'batch (tokens)', 'speed'; blank cells are allowed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("header", "cells"),
    [("Model,Sequence Length,GPU,World Size,DP,Global Batch Size,tokens/s/GPU", "m,8192,H100,8,8,64,8192"),
     ("model,max_seq_len,gpu,#GPUs,dp,GBS,Step Time (ms)", "m,8192,H100,8,8,64,8000"),
     ("model,seq_length,gpu,num_gpus,dp,global_batch,ms/step", "m,8192,H100,8,8,64,8000 ms"),
     ("model,context length,accelerator,n_gpus,dp_size,gbs,TGS", "m,8192,H100,8,8,64,8192"),
     ("model,seq_len,GPU type,gpus,data_parallel_degree,gbs,s/iter", "m,8192,H100,8,8,64,8"),
     ("model,seq_len,gpu,GPU count,dp,global batch,step time", "m,8192,H100,8,8,64,8000 ms"),
     ("model,seq_len,gpu,gpus,dp,gbs,elapsed time per iteration (ms)", "m,8192,H100,8,8,64,8000.0"),
     ("model,seq_len,gpu,gpus,dp,gbs,time per iteration (s)", "m,8192,H100,8,8,64,8"),
     ("model,seq_len,gpu,gpus,dp,gbs,Throughput (tokens/s/GPU)", "m,8192,H100,8,8,64,8192"),
     ("model,seq_len,gpu,gpus,dp,gbs,tokens_per_gpu_per_second", "m,8192,H100,8,8,64,8192")],
)  # fmt: skip
def test_names_of_columns_as_people_write_them_are_read(header: str, cells: str, tmp_path: Path) -> None:
    runs = tmp_path / "runs.csv"
    runs.write_text(f"{header}\n{cells}\n")
    (row,) = read_table(runs)
    assert is_llm_table(runs)
    assert [row.number[name] for name in ("seq_len", "gpus", "dp", "global_batch")] == [8192, 8, 8, 64] and row.step_time == 8.0


def test_a_time_without_any_unit_is_not_read(tmp_path: Path) -> None:
    runs = tmp_path / "runs.csv"
    runs.write_text("model,seq_len,gpu,gpus,dp,global batch,step time\nm,8192,H100,8,8,64,8 s\nm,8192,H100,8,8,64,8000\n")
    with pytest.raises(SpecError, match="missing: step_time_s or tokens_per_s_per_gpu; not read: 'step time'"):
        read_table(runs)


def test_columns_that_are_not_read_are_named(tmp_path: Path) -> None:
    """Otherwise a run with a misnamed column is predicted as another run, without a word."""
    runs = tmp_path / "runs.csv"
    runs.write_text("# ours\nmodel,seq_len,gpu,World Size,dp,global_batch,step_time_s,ckpt,host\nm,8192,H100,8,8,64,8,full,a\n")
    assert column_notes(runs) == [f"{runs}:2: column 'World Size' was read as gpus", f"{runs}:2: columns 'ckpt', 'host' are not read"]


def test_a_table_of_images_is_none_of_transformers(tmp_path: Path) -> None:
    runs = tmp_path / "runs.csv"
    runs.write_text(
        "GPU model,#GPUs,#nodes,Network,Model,per-device batch,Precision,ms/step,images/sec\nA100,8,1,,resnet50,128,fp16,97.1,10545\n"
    )
    assert not is_llm_table(runs)
    runs.write_text("gpu,model,num_gpus,bs,dtype,iter time (s)\nRTX 5080,resnet50,4,64,fp16,0.120\n")
    assert not is_llm_table(runs)
    runs.write_text("Instance Type,Model,World Size,Step Time (ms)\np4d.24xlarge,resnet50,8,97.1\n")
    assert not is_llm_table(runs)


def test_lines_of_commas_are_blank(tmp_path: Path) -> None:
    """Spreadsheets write empty rows, and those between parts of a table, as lines of commas."""
    path = table(tmp_path, [{}, {}])
    lines = path.read_text(encoding="utf-8").splitlines()
    blank = "," * lines[0].count(",")
    path.write_text("\n".join([lines[0], blank, lines[1], f"{blank}\n", lines[2], blank]), encoding="utf-8")
    assert [row.line for row in read_table(path)] == [3, 6]


def test_runs_that_failed_need_no_time(tmp_path: Path) -> None:
    """A table for ``--memory``: what ran out of memory took no step."""
    path = table(tmp_path, [{"status": "oom"}], without=("step_time_s", "tokens_per_s_per_gpu"))
    assert len(read_table(path, failed=True)) == 1
    with pytest.raises(SpecError, match="column missing: step_time_s or tokens_per_s_per_gpu"):
        read_table(path)
