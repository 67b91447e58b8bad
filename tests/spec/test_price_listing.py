"""Prices of the catalog: ages counted by hand, and a checkout of SkyPilot's catalog with the traps that its files have."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sim.cli import app, main
from sim.documents import document
from sim.report.listing import columns_text
from sim.spec import price_refresh
from sim.spec.catalog import catalog
from sim.spec.days import STALE_DAYS, first_day
from sim.spec.library import load_hardware
from sim.spec.listing import export_row, per_hour_text
from sim.spec.node_prices import Prices
from sim.spec.price_listing import PRICES, fitting_columns, named_rows, price_rows
from sim.spec.yaml import SpecError
from sim.study.scenario import Scenario

HEADER = "AvailabilityZone,InstanceType,AcceleratorName,AcceleratorCount,vCPUs,Price,SpotPrice,Region\n"


def checkout(folder: Path, **clouds: str) -> Path:
    """Write a vms.csv for each cloud below *folder*."""
    for cloud, rows in clouds.items():
        (folder / "catalogs" / "v8" / cloud).mkdir(parents=True)
        (folder / "catalogs" / "v8" / cloud / "vms.csv").write_text(HEADER + rows)
    return folder


def test_a_date_may_leave_out_what_is_not_known():
    written = {"2026-05-20": (2026, 5, 20), "2026-05": (2026, 5, 1), "2026": (2026, 1, 1), "2022-23": (2022, 1, 1)}
    assert {text: first_day(text) for text in written} == {text: date(*day) for text, day in written.items()}
    for wrong in ("yesterday", "2026-02-30", "20260520"):
        with pytest.raises(SpecError, match="YYYY-MM-DD"):
            first_day(wrong)


def test_every_price_has_an_age_and_old_ones_are_marked():
    rows, problems = price_rows(date(2026, 11, 22))
    by_name = {row["name"]: row for row in rows}
    assert not problems
    lambda_, nebius, aws = (by_name[name] for name in ("gpu_8x_h100_sxm5", "gpu-h100-sxm_8gpu-128vcpu-1600gb", "p5.4xlarge"))
    assert (lambda_["age"], lambda_["spot_age"], lambda_["mark"]) == (24 + 30 + 31 + 31 + 30 + 31 + 22, None, "old: on demand")
    assert nebius["age"] == nebius["spot_age"] == 365 - 9 - 31  # of some day of 2026, at worst its first
    assert lambda_["gpu_price"] == pytest.approx(31.92 / 8 / 3600)
    assert aws["spot"] == pytest.approx(2.6295 / 3600) and aws["spot_age"] == 234
    dated = [row for row in rows if "undated" not in str(row["mark"])]
    assert not [row["name"] for row in dated if bool(row["mark"]) != any((row[key] or 0) > STALE_DAYS for key in ("age", "spot_age"))]
    assert "gb200-nvl72" not in by_name  # nobody rents it so


def test_a_checkout_changes_what_it_says_of_the_region_and_no_more(tmp_path):
    folder = checkout(
        tmp_path,
        aws="us-east-1a,p5.48xlarge,H100,8,192,60,22,us-east-1\nus-east-1b,p5.48xlarge,H100,8,192,60,24,us-east-1\n"
        "us-east-1c,p5.48xlarge,H100,8,192,60,60,us-east-1\nus-west-2a,p5.48xlarge,H100,8,192,50,5,us-west-2\n"
        "us-east-1a,p6-b200.48xlarge,B200,8,192,113.9328,,us-east-1\n",
        # machine and accelerators apart; zone b at a committed rate, zone c a placeholder; the A4 has its whole price in its GPUs
        gcp="us-central1-a,a3-megagpu-8g,,,208,10,5,us-central1\nus-central1-b,a3-megagpu-8g,,,208,10,5,us-central1\n"
        "us-central1-c,a3-megagpu-8g,,,208,10,5,us-central1\n"
        "us-central1-a,,H100-MEGA,8,,90,35,us-central1\nus-central1-b,,H100-MEGA,8,,30,35,us-central1\n"
        "us-central1-c,,H100-MEGA,8,,5600,35,us-central1\nus-central1-a,,H100,8,,70,20,us-central1\n"
        "us-central1-a,a2-megagpu-16g,,,96,8,4,us-central1\nus-central1-a,,A100,16,,50,25,us-central1\n"
        "us-central1-a,a4-highgpu-8g,,,224,0,0,us-central1\nus-central1-a,,B200,8,,95,40,us-central1\n",
        azure=",Standard_ND96isr_H200_v5,H200,8,96,85.5,85.5,eastus2\n",
    )
    assert changes(folder) == {
        "p5.48xlarge": (60, 23),  # the middle of the zones with a machine to spare
        "a2-megagpu-16g": (58, 29), "a3-megagpu-8g": (100, 40), "a4-highgpu-8g": (95, 40), "nd96isr_h200_v5": (85.5, None),
    }  # fmt: skip


AWS = """package pricing

// generated at 2026-08-15T13:23:24Z for us-east-1
var InitialOnDemandPricesAWS = map[string]map[ec2types.InstanceType]float64{
\t// us-east-1
\t"us-east-1": {
\t\t// p5 family
\t\t"p5.48xlarge": 60.000000, "p5.4xlarge": 6.880000,
\t},
\t"us-gov-west-1": {
\t\t"p5.48xlarge": 99.000000,
\t},
}
"""
AZURE = """package pricing
// generated at 2023-12-18T14:34:50Z
var initialOnDemandPrices = map[string]map[string]float64{}
func init() {
\t// eastus
\tinitialOnDemandPrices["eastus"] = map[string]float64{
\t\t"Standard_ND96isr_H100_v5": 90.000000,
\t}
}
"""
GCP = {
    "prices": {"us-central1": {"on_demand": {"a3-highgpu-8g": 80.5}, "spot": {"a3-highgpu-8g": 40.25}}, "europe-north1": {"on_demand": {}}}
}


def changes(folder: Path) -> dict[str, tuple[float | None, float | None]]:
    """Return the new prices of the machines that *folder* changes, USD per hour, rounded."""
    return {
        change.name: tuple(None if price is None else round(price * 3600, 6) for price in (change.new.on_demand, change.new.spot))
        for change in price_refresh.price_changes(folder)
    }  # type: ignore[return-value]


def test_lists_of_karpenter_come_before_skypilot_s_unless_they_are_older_than_the_price(tmp_path: Path) -> None:
    """Oracle: by hand. AWS on demand from the newer list and spot from SkyPilot; the list for Azure is of 2023; GCP has both."""
    provider = tmp_path / "karpenter-provider-aws" / "pkg/providers/pricing"
    provider.mkdir(parents=True)
    (provider / "zz_generated.pricing_aws.go").write_text(AWS)
    (tmp_path / "zz_generated.pricing.go").write_text(AZURE)
    (tmp_path / "initial-prices.json").write_text(json.dumps(GCP))
    checkout(tmp_path, aws="us-east-1a,p5.48xlarge,H100,8,192,58,22,us-east-1\n", azure=",Standard_ND96isr_H100_v5,H100,8,96,95,,eastus\n")
    by_name = {change.name: change for change in price_refresh.price_changes(tmp_path, "2026-09-01")}
    assert changes(tmp_path) == {"p5.48xlarge": (60, 22), "a3-highgpu-8g": (80.5, 40.25)}
    aws, gcp = by_name["p5.48xlarge"].new, by_name["a3-highgpu-8g"].new
    assert (aws.date, aws.spot_date, gcp.date, gcp.day_of_spot) == ("2026-08-15", "2026-09-01", "2026-09-01", "2026-09-01")
    assert aws.source == {
        "*": "aws/karpenter-provider-aws, generated 2026-08-15", "spot": "skypilot-org/skypilot-catalog, a checkout of 2026-09-01",
    }  # fmt: skip
    assert gcp.source == "cloudpilot-ai/karpenter-provider-gcp, a checkout of 2026-09-01"
    written = price_refresh.rewrite(by_name["p5.48xlarge"])
    machine = tmp_path / "written.yaml"
    machine.write_text(written)
    reread = load_hardware(str(machine)).spec.groups[0].price
    assert reread is not None and reread.on_demand == pytest.approx(aws.on_demand) and reread.source == aws.source
    assert (reread.date, reread.day_of_spot) == ("2026-08-15", "2026-09-01")


def test_the_lowest_of_any_region_is_refreshed_where_a_list_has_several(tmp_path: Path) -> None:
    """Oracle: by hand. SkyPilot's zones of GCP, some of which have other rates, are no such list."""
    regions = {"us-central1": {"on_demand": {"g2-standard-12": 1.2}, "spot": {"g2-standard-12": 0.5}},
               "asia-east1": {"on_demand": {"g2-standard-12": 1.1}, "spot": {"g2-standard-12": 0.6}}}  # fmt: skip
    (tmp_path / "initial-prices.json").write_text(json.dumps({"prices": regions}))
    rows = "us-central1-a,a3-megagpu-8g,,,208,10,5,us-central1\nus-east4-a,a3-megagpu-8g,,,208,1,1,us-east4\n"
    checkout(
        tmp_path, gcp=rows, aws="us-east-1a,p5.48xlarge,H100,8,192,60,22,us-east-1\nus-west-2a,p5.48xlarge,H100,8,192,50,5,us-west-2\n"
    )
    (aws, gcp) = (
        change.new for change in sorted(price_refresh.price_changes(tmp_path, "2026-11-20"), key=lambda each: each.new.region, reverse=True)
    )
    for new, expected in ((gcp, (1.1, 0.5, "asia-east1", "us-central1")), (aws, (50, 5, "us-west-2", "us-west-2"))):
        block = new.cheapest
        assert block is not None and (block.on_demand, block.spot) == pytest.approx([price / 3600 for price in expected[:2]])
        assert (block.region, block.spot_region, block.date, block.day_of_spot) == (*expected[2:], "2026-11-20", "2026-11-20")


def test_what_no_list_has_keeps_its_price_and_day(tmp_path: Path) -> None:
    (tmp_path / "zz_generated.pricing_aws.go").write_text(AWS.replace("p5.4xlarge", "p3.8xlarge").replace("6.88", "13.0"))
    old = load_hardware("p3.8xlarge").spec.groups[0].price
    new = next(change.new for change in price_refresh.price_changes(tmp_path) if change.name == "p3.8xlarge")
    assert old is not None and isinstance(old.source, dict) and isinstance(new.source, dict)
    assert new.on_demand == pytest.approx(13 / 3600) and (new.spot, new.spot_date) == (old.spot, old.spot_date)
    assert new.source["spot"] == old.source["spot"]


BAD = {
    "a text in another encoding": ("vms.csv", HEADER.encode() + b"a,p5.48xlarge,H100,8,192,60,22,\xff\n", "is not UTF-8 text"),
    "a long cell": ("vms.csv", f'{HEADER}"{"a" * 200_000}"\n'.encode(), "a cell has more than 131,072 characters"),
    **{
        f"a price of {text}": (
            "vms.csv",
            f"{HEADER}a,p5.48xlarge,H100,8,192,{text},,us-east-1\n".encode(),
            f"'{text}' is not a price of 0 or",
        )
        for text in ("-5", "nan", "inf", "1e400", "0x10")
    },
    "a Go file without prices": ("zz_generated.pricing_aws.go", b"package pricing\n", "holds no prices by region"),
    "a Go price below 0": (
        "zz_generated.pricing_aws.go",
        AWS.replace("60.0", "-60.0").encode(),
        ":8: p5.48xlarge: '-60.000000' is not a price",
    ),
    "no JSON": ("initial-prices.json", b"{", "the JSON is truncated or invalid"),
    "other JSON": ("initial-prices.json", b'{"prices": {"a": {"on_demand": {"b": -1}}}}', "prices.a.on_demand.b: "),
}


@pytest.mark.parametrize("name", BAD)
def test_a_list_that_is_not_what_it_should_be_is_told_in_a_sentence(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, content, says = BAD[name]
    path = (checkout(tmp_path, aws="").joinpath("catalogs/v8/aws/vms.csv")) if file == "vms.csv" else tmp_path / file
    path.write_bytes(content)
    assert main(["prices", "--refresh", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert says in error and str(path) in error and len(error.splitlines()) == 1


def test_changes_are_written_over_the_price_alone(tmp_path):
    folder = checkout(tmp_path, azure=",Standard_ND96isr_H200_v5,H200,8,96,85.5,20,eastus2\n")
    change = next(c for c in price_refresh.price_changes(folder, "2026-11-22"))
    before, after = change.path.read_text(), price_refresh.rewrite(change)
    assert after[: after.index("price:")] == before[: before.index("price:")]
    block = after[after.index("price:") :].split("  cheapest:")
    path = tmp_path / "again.yaml"
    path.write_text(after)
    price = load_hardware(str(path)).spec.groups[0].price
    assert price is not None and price.cheapest == change.old.cheapest
    assert block[0].splitlines() == [
        "price:", "  on_demand: 85.5 USD/h", "  spot: 20 USD/h", "  date: 2026-11-22", "  region: eastus2",
        '  source: "skypilot-org/skypilot-catalog, a checkout of 2026-11-22"',
    ]  # fmt: skip


def test_what_is_no_checkout_is_refused_in_a_sentence(tmp_path):
    with pytest.raises(SpecError, match=r"contains no <cloud>/vms\.csv"):
        price_refresh.price_changes(tmp_path)
    with pytest.raises(SpecError, match=r"vms\.csv:2: Price: 'dear' is not a price of 0 or more"):
        price_refresh.price_changes(checkout(tmp_path / "a", aws="a,p5.48xlarge,H100,8,192,dear,,us-east-1\n"))
    (tmp_path / "b" / "aws").mkdir(parents=True)
    (tmp_path / "b" / "aws" / "vms.csv").write_text("InstanceType,Price\n")
    with pytest.raises(SpecError, match=r"vms\.csv:1: no column AcceleratorName, AcceleratorCount, SpotPrice, Region"):
        price_refresh.price_changes(tmp_path / "b")


def test_the_command_lists_filters_and_shows_changes(tmp_path):
    run = CliRunner().invoke
    listed = run(app, ["prices", "--today", "2026-11-22", "--where", "gpu=MI300X"])
    assert listed.exit_code == 0 and {line.split()[0] for line in listed.stdout.splitlines()} >= {"bm.gpu.mi300x.8", "nd96isr_mi300x_v5"}
    assert run(app, ["prices", "--where", "gpu=Cray-1"]).exit_code == 1
    ages = run(app, ["prices", "n3-a100x1", "n3-h100-sxm5x8", "--today", "2026-12-22"]).stderr
    assert ages == "2 machines, 1 with a price more than 90 days old, 1 with an undated price\n"
    folder = str(checkout(tmp_path, oci=",BM.GPU.H100.8,H100,8,224,81,,us-ashburn-1\n"))
    shown = run(app, ["prices", "--refresh", folder])
    assert shown.exit_code == 0 and "on demand 80 -> 81" in shown.stdout and shown.stderr.startswith("1 machine differs")


def test_a_refresh_names_the_files_that_it_wrote(tmp_path, monkeypatch):
    """A copy of the catalog's machine is written, not the catalog."""
    folder = str(checkout(tmp_path, oci=",BM.GPU.H100.8,H100,8,224,81,,us-ashburn-1\n"))
    copied = tmp_path / "hardware" / "bm.gpu.h100.8.yaml"
    copied.parent.mkdir()
    copied.write_bytes(catalog("hardware")["bm.gpu.h100.8"].read_bytes())
    changes = price_refresh.price_changes

    def of_copy(*given):
        return [change._replace(path=copied) for change in changes(*given)]

    monkeypatch.setattr(price_refresh, "price_changes", of_copy)
    shown = CliRunner().invoke(app, ["prices", "--refresh", folder, "--date", "2026-11-20"])
    assert shown.exit_code == 0 and shown.stderr == f"1 machine differs; wrote {copied}\n"
    assert "81 USD/h" in copied.read_text()


def test_rows_by_machine_gpu_or_provider() -> None:
    rows, _ = price_rows(date(2026, 11, 1))
    named = named_rows(rows, ["p4d.24xlarge", "lambda"])
    assert {row["name"] for row in named} >= {"p4d.24xlarge"}
    assert all(row["name"] == "p4d.24xlarge" or row["provider"] == "lambda" for row in named) and len(named) > 1
    assert {row["gpu"] for row in named_rows(rows, ["H100-SXM5-80GB"])} == {"H100-SXM5-80GB"}
    assert named_rows(rows, []) == rows
    with pytest.raises(SpecError, match=r"^p4d.24xlarg: no machine, GPU or provider with a price; did you mean p4d.24xlarge"):
        named_rows(rows, ["p4d.24xlarg"])


def test_other_gpus_are_not_rented_at_the_machine_s_price() -> None:
    """As of a file that extends the machine; a price that is written is the user's, whatever comes first."""
    assert load_hardware("p4d.24xlarge").spec.groups[0].price is not None
    for changes in (["node.gpu=H100"], ["groups.0.node.gpu=H100"], ["node.gpu={extends: H100-SXM5-80GB}"], ["node=dgx-a100"]):
        for name in ("p4d.24xlarge", "2x-p3.8xlarge"):
            price = load_hardware(name, changes).spec.groups[0].price
            assert price is None if changes == ["node=dgx-a100"] else price == Prices(region="us-east-1")  # whose electricity it uses
    for changes in (["node.gpu=H100", "price.on_demand=30 USD/h"], ["price.on_demand=30 USD/h; node.gpu=H100"]):
        price = load_hardware("p4d.24xlarge", changes).spec.groups[0].price
        assert price is not None and price.on_demand == pytest.approx(30 / 3600) and price.date == ""
    named = load_hardware("2x-p3.8xlarge").spec.groups[0].price  # that of the machine that the cluster is made of
    assert named is not None and load_hardware("2x-p3.8xlarge", ["node.nic.bandwidth=100 Gbps"]).spec.groups[0].price == named
    for name, gpu, count in (
        ("p3.16xlarge", "V100-SXM2-16GB", 8),
        ("p4d.24xlarge", "a100-sxm4-40gb", 8),
        ("2x-p3.8xlarge", "V100-SXM2-16GB", 4),
    ):
        kept = load_hardware(name).spec.groups[0].price  # the GPUs are the machine's own
        for changes in ([f"node.gpu={gpu}"], [f"groups.0.node.gpu_count={count}"], [f"node.gpu={{extends: {gpu}}}"]):
            assert kept is not None and load_hardware(name, changes).spec.groups[0].price == kept
    own = load_hardware("p5.48xlarge").spec.groups[0].price
    assert load_hardware("p4d.24xlarge", ["node=p5.48xlarge"]).spec.groups[0].price == own
    assert load_hardware("p4d.24xlarge", ["node.gpu.memory=90 GiB"]).spec.groups[0].price is not None
    said = document(Scenario("p4d.24xlarge", "vgg16", ("node.gpu=H100",)))["assumptions"]
    assert "no price for p4d.24xlarge as described, so no cost (--set price.on_demand='10 USD/h')" in said


def test_prices_of_days_to_come_are_marked(capsys: pytest.CaptureFixture[str]) -> None:
    """Oracle: the dates of p3.8xlarge, 2026-07-20 and on the spot market 2025-06."""
    for day, mark in (("2020-01-01", "in the future: on demand, spot"), ("2026-01-01", "old: spot; in the future: on demand")):
        assert main(["prices", "p3.8xlarge", "--today", day, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["prices"][0]["mark"] == mark
        assert main(["prices", "p3.8xlarge", "--today", day]) == 0
        assert capsys.readouterr().err.endswith(", 1 with a price dated in the future\n")
    assert main(["prices", "p3.8xlarge", "--today", "foo"]) == 2
    assert capsys.readouterr().err.startswith("--today foo is not a date; write YYYY-MM-DD")


def test_a_checkout_has_no_date_to_come(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for day, says in (("2999-01-01", "--date 2999-01-01: is in the future"), ("foo", "--date foo is not a date")):
        assert main(["prices", "--refresh", str(tmp_path), "--date", day]) == 2
        assert capsys.readouterr().err.startswith(says)


def named(*names: str) -> set[str]:
    return {str(row["name"]) for row in named_rows(price_rows(date(2026, 11, 1))[0], names)}


def test_a_provider_and_a_gpu_mean_that_gpu_of_that_provider() -> None:
    """Oracle: the columns of the rows. Machines are shown beside them; two providers or two GPUs mean either."""
    rows, _ = price_rows(date(2026, 11, 1))
    by_hand = {row["name"] for row in rows if row["provider"] == "aws" and str(row["gpu"]).startswith("H100")}
    assert named("aws", "H100") == named("H100", "aws") == by_hand and len(by_hand) == 2
    assert named("aws", "H100", "p2.xlarge") == by_hand | {"p2.xlarge"}
    assert named("aws", "gcp", "H100") == by_hand | named("gcp", "H100")
    assert named("aws", "H100", "A100") == by_hand | named("aws", "A100")
    with pytest.raises(SpecError, match=r"^coreweave MI300X: no machine of the provider has this GPU; it has B200-SXM-180GB, GB200"):
        named("coreweave", "MI300X")
    with pytest.raises(SpecError, match=r"^nosuch: .*; providers: aws, azure, .*, verda; 'python -m sim prices' lists all machines"):
        named("nosuch")


@pytest.mark.parametrize(("amount", "text"), [(3.673, "3.67"), (98.32, "98.32"), (0.526, "0.526"), (0.9, "0.90"), (1.006, "1.01")])
def test_prices_have_cents_and_below_a_dollar_a_tenth_of_one(amount: float, text: str) -> None:
    assert per_hour_text(amount) == text


def test_what_a_narrow_terminal_has_no_room_for_is_left_out() -> None:
    """Oracle: the lengths of the lines, and the columns that the reader cannot do without."""
    rows, _ = price_rows(date(2026, 11, 1))
    assert fitting_columns(rows, 1000) == PRICES
    for width in (40, 60, 80, 100, 140):
        columns = fitting_columns(rows, width)
        assert max(map(len, columns_text(rows, columns).splitlines())) <= width
        assert [column for column in PRICES if column in columns] == list(columns)
        assert {"name", "price", "gpus", "gpu"} <= {column.name for column in columns} or width < 80
    assert [column.name for column in fitting_columns([], 10)][:1] == ["name"]


def test_the_lowest_price_of_any_region_is_shown_with_its_region_and_day() -> None:
    """Oracle: the description; an undated price is said to be undated."""
    rows = {row["name"]: row for row in price_rows(date(2026, 11, 1))[0]}
    block = load_hardware("a3-highgpu-8g").spec.groups[0].price
    assert block is not None and block.cheapest is not None and block.cheapest.spot is not None
    exported = export_row(rows["a3-highgpu-8g"], PRICES)
    assert exported["cheapest_spot_usd_per_h"] == pytest.approx(3600 * block.cheapest.spot) and exported["cheapest_region"] == "us-central1"
    assert (exported["cheapest_spot_region"], exported["cheapest_spot_of"]) == ("europe-north1", "2026-08-03")
    assert rows["n3-a100x1"]["mark"] == "undated: on demand" and rows["gpu_1x_a10"]["cheapest"] is None
