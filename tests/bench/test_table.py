"""What does the table of benches say? Oracle: figures by hand."""

from __future__ import annotations

from tests.bench.table import PAGE, TABLE, figure, renewed, table


def bench(median: float, **said: object) -> dict[str, object]:
    return {"stats": {"median": median}, "extra_info": {"label": "it"} | said}


def test_a_figure_is_a_time_a_rate_or_a_value() -> None:
    assert figure(bench(0.01234)) == "12 ms"
    assert figure(bench(0.5, count=600, unit="steps/s")) == "1,200 steps/s"
    assert figure(bench(0.5, value="55 MiB")) == "55 MiB"


def test_the_table_stands_between_its_marks() -> None:
    lines = ["| median CPU time, 2 cores | reached | aim, or a peer's |", "|---|---|---|", "| it | 2 s |  |", "| it | 3 s | 5 s |"]
    assert table([bench(2.0), bench(3.0, aim="5 s")], "2 cores") == "\n".join(lines) + "\n"
    assert TABLE.search(PAGE.read_text(encoding="utf-8"))


def test_one_file_renews_its_own_rows() -> None:
    before = table([bench(2.0), {**bench(3.0), "extra_info": {"label": "that", "aim": "5 s"}}], "2 cores")
    after = renewed(before, [bench(4.0), {**bench(1.0), "extra_info": {"label": "new"}}])
    assert after == before.replace("| it | 2 s |", "| it | 4 s |") + "| new | 1 s |  |\n"
