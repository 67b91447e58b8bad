"""``prices``: list prices with their age, or update them from a local checkout."""

from __future__ import annotations

import shutil
import sys
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sim.commands import names
from sim.commands.app import app
from sim.commands.options import JsonOption
from sim.report.files import folder_there
from sim.spec.yaml import SpecError, in_library
from sim.terminal import messages, print_json, show_text
from sim.units import pluralized

if TYPE_CHECKING:
    from sim.spec.node_prices import Prices


@app.command(epilog="Examples:\n  python -m sim prices aws H100\n  python -m sim prices --where provider=aws --today 2027-01-31")
def prices(
    machines: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...",
            help="machines, GPUs or providers; a provider and a GPU mean that GPU of that provider; all by default",
            autocompletion=names.hardware,
        ),
    ] = [],
    where: Annotated[
        list[str],
        typer.Option("--where", metavar="COND", help="only rows that match, such as gpus=1..8 or provider=aws,gcp; repeatable"),
    ] = [],
    today: Annotated[str | None, typer.Option(metavar="YYYY-MM-DD", help="day for which ages are computed; today by default")] = None,
    refresh: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            callback=folder_there,
            help="show what price lists on disk would change: SkyPilot's catalog, Karpenter providers",
        ),
    ] = None,
    date: Annotated[str | None, typer.Option(metavar="YYYY-MM-DD", help="with --refresh: write the changes, dated this day")] = None,
    as_json: JsonOption = False,
) -> None:
    """List on-demand and spot prices of machines with their age; nothing is downloaded."""
    if date and not refresh:
        raise SpecError("--date applies only to --refresh; write --refresh DIR, or leave it out")
    if refresh:
        _refresh(refresh, date, as_json)
        return
    from sim.report.listing import columns_text
    from sim.spec.days import STALE_DAYS
    from sim.spec.days import today as clock
    from sim.spec.listing import export_row, select, without_match
    from sim.spec.price_listing import PRICES, fitting_columns, named_rows, price_rows

    rows, problems = price_rows(_day("--today", today) if today else clock())
    for problem in problems:
        typer.echo(problem, err=True)
    chosen = select(named_rows(rows, machines), where, PRICES)
    if where and not chosen:
        messages(without_match(rows, where, PRICES))
    if as_json:
        print_json({"prices": [export_row(row, PRICES) for row in chosen]})
    else:
        columns = fitting_columns(chosen, shutil.get_terminal_size().columns) if sys.stdout.isatty() else PRICES
        show_text(columns_text(chosen, columns))
        if len(columns) < len(PRICES):
            left = ", ".join(f"{column.title}" for column in PRICES if column not in columns and column.title not in ("in", "of"))
            messages(f"left out for the width of the terminal: {left} (all with a pipe or --json)")
        old, early, undated = (sum(word in str(row["mark"]) for row in chosen) for word in ("old", "in the future", "undated"))
        others = f", {undated} with an undated price" if undated else ""
        others += f", {early} with a price dated in the future" if early else ""
        messages(f"{pluralized(len(chosen), 'machine')}, {old} with a price more than {STALE_DAYS} days old{others}")
    if where and not chosen:
        raise typer.Exit(1)


def _day(option: str, text: str) -> date:
    from sim.spec.days import first_day

    try:
        return first_day(text)
    except SpecError as error:
        raise SpecError(f"{option} {error}") from None


def _refresh(folder: Path, day: str | None, as_json: bool) -> None:
    """Show the prices that *folder* would change; if *day* is given, write them as prices of that day."""
    from sim.spec.days import is_future
    from sim.spec.price_refresh import price_changes, rewrite

    def shown(price: Any) -> str:
        return "-" if price is None else f"{price:.6g}"

    if day:
        _day("--date", day)
        if is_future(day):
            raise SpecError(f"--date {day}: is in the future; write the day of the checkout")
    changed = price_changes(folder, day or "")
    texts = [(change.path, rewrite(change)) for change in changed] if day else []
    for path, text in texts:
        path.write_text(text, encoding="utf-8")
    rows = [
        {"name": change.name, **_amounts(change.new, ""), **_amounts(change.old, "old_"), "old_date": change.old.date} for change in changed
    ]
    if as_json:
        print_json({"changes": rows})
        return
    names = ("on demand", "on_demand"), ("spot", "spot"), ("cheapest", "cheapest"), ("cheapest spot", "cheapest_spot")
    markets = [(market, f"{key}_usd_per_h") for market, key in names]
    for row in rows:
        changes = [f"{market} {shown(row[f'old_{key}'])} -> {shown(row[key])}" for market, key in markets if row[key] or row[f"old_{key}"]]
        text = "   ".join(changes)
        typer.echo(f"{row['name']:36} {text} USD/h (was of {row['old_date'] or 'no date'})")
    messages(
        f"{pluralized(len(changed), 'machine')} {'differs' if len(changed) == 1 else 'differ'}"
        + (
            f"; wrote {', '.join(in_library(str(path)) for path, _ in texts) or 'no file'}"
            if day
            else "; --date YYYY-MM-DD writes them as prices of that day"
        )
    )


def _amounts(price: Prices, prefix: str) -> dict[str, float | None]:
    """Return the amounts of *price*, USD per hour, under the names of the document with *prefix*."""
    lowest = price.cheapest
    named = {
        "on_demand": price.on_demand,
        "spot": price.spot,
        "cheapest": lowest.on_demand if lowest else None,
        "cheapest_spot": lowest.spot if lowest else None,
    }
    return {f"{prefix}{name}_usd_per_h": None if amount is None else 3600 * amount for name, amount in named.items()}
