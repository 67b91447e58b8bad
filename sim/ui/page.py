"""What does the page contain before anything is computed? The controls with their labels, and the placeholders for results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Final, get_args

from sim.report.page.frame import embed_json, frame
from sim.report.page.markup import Html, details, join, tag
from sim.spec.fields import Precision
from sim.spec.listing import Row
from sim.spec.parallel import Schedule, Shard
from sim.spec.training import Training
from sim.ui.choice import AMONG, DEFAULTS
from sim.ui.download import FILES
from sim.ui.machines import PEERS
from sim.units import rounded

SLIDERS: Final[Mapping[str, tuple[int, ...]]] = {
    "nodes": (1, 2, 4, 8, 16, 32, 64, 128, 256),
    "batch": (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
    "nic": (10, 25, 50, 100, 200, 400, 800),
    "sequence": (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072),
    "tp": (1, 2, 4, 8, 16),
    "pp": (1, 2, 4, 8, 16, 32),
    "cp": (1, 2, 4, 8, 16),
    "ep": (1, 2, 4, 8, 16, 32, 64),
    "micro_batches": (1, 2, 4, 8, 16, 32, 64, 128),
    "price": (1, 2, 5, 10, 20, 30, 40, 50, 60, 80, 100, 150),
    "epochs": (1, 2, 5, 10, 20, 50, 90, 200, 500),
}
"""The stops of each slider; the field next to it accepts any number."""
CHECKPOINTING: Final[Mapping[str, str]] = {
    "model": "as in the model's code",
    "blocks": "whole blocks",
    "selective": "attention (selective)",
    "operators": "selective, by operator",
}
"""Labels for values of ``activation_checkpointing`` that are not self-explanatory."""
_OTHERS: Final = "others"
_PLACES: Final = {"time": "Time", "memory": "Memory", "machines": "Machines", "keep": "Save"}


def control_page(hardware: Sequence[Row], workloads: Sequence[Row]) -> str:
    """Return the page, with the machines and workloads of these listings to choose from."""
    own = files("sim.ui")
    style, script = (own.joinpath(name).read_text(encoding="utf-8") for name in ("ui.css", "ui.js"))
    desk = tag("div", _controls(hardware, workloads), _results(), class_="desk")
    data = tag("script", embed_json({"defaults": DEFAULTS}), type="application/json", id="json-controls")
    return frame("stallsim", "try it", [("controls", "Controls"), *_PLACES.items()], desk, data, style, script)


# --- controls --------------------------------------------------------------------------------------------------------


def _controls(hardware: Sequence[Row], workloads: Sequence[Row]) -> Html:
    job = [
        _select("workload", "Model", _grouped(workloads, "dataset", _workload_name), "from the catalog; type to search"),
        _slider("batch", "Batch per GPU", "samples per micro-batch; max: largest that fits"),
        _select("precision", "Precision", _plain(get_args(Precision)), empty=True),
        _slider("sequence", "Sequence", "tokens per sample"),
        _field("stack", "Software stack", "name in workloads/stacks"),
    ]
    machine = [
        _select("hardware", "Machine", _grouped(hardware, "provider", _hardware_name)),
        _slider("nodes", "Nodes", ""),
        _slider("nic", "Network (Gbit/s per NIC)", ""),
    ]
    layout = [
        _slider("tp", "Tensor parallel", ""),
        _slider("pp", "Pipeline stages", ""),
        _slider("cp", "Context parallel", ""),
        _slider("ep", "Expert parallel", ""),
        _select("shard", "Shard (ZeRO, FSDP)", _plain(get_args(Shard)), empty=True),
        _slider("micro_batches", "Micro-batches", "per optimizer step"),
        _select("schedule", "Pipeline schedule", _plain(get_args(Schedule)), empty=True),
        _select("checkpointing", "Activation checkpointing", _plain(_checkpointing(), CHECKPOINTING), empty=True),
    ]
    money = [
        _select("market", "Prices", _plain(("on-demand", "spot"))),
        _slider("price", "Price (USD per node-hour)", "instead of the catalog price"),
        _slider("epochs", "Epochs of the whole job", ""),
        _field("tokens", "Tokens of the whole job", "for example 300B"),
        _select(AMONG, "Compare with", _plain(PEERS, PEERS)),
    ]
    more = tag("textarea", id="c-set", name="set", rows=3, spellcheck="false", aria_describedby="h-set", placeholder="input.num_workers=8")
    return tag(
        "form",
        _group("Job", job), _group("Machine", machine), _group("Layout", layout), _group("Prices and length", money),
        _group("Any other field", [_control("set", "Fields, one per line", more, "KEY=VALUE, as after --set on the command line")], False),
        tag("div", tag("button", "Reset", type="reset"), class_="tools"),
        id="controls", autocomplete="off", aria_label="Controls",
    )  # fmt: skip


def _group(title: str, controls: Sequence[Html], begin_open: bool = True) -> Html:
    return tag("details", tag("summary", title), tag("div", *controls, class_="group"), open=begin_open)


def _control(name: str, label: str, field: Html, hint: str = "") -> Html:
    below = tag("small", hint, id=f"h-{name}") if hint else None
    return tag("div", tag("label", label, for_=f"c-{name}"), field, below, class_="control")


def _field(name: str, label: str, hint: str) -> Html:
    return _control(name, label, _input(name, hint, "text"), hint)


def _slider(name: str, label: str, hint: str) -> Html:
    values = SLIDERS[name]
    slider = tag(
        "input", type="range", id=f"r-{name}", min="0", max=str(len(values) - 1), step="1", value="0", data_for=f"c-{name}",
        data_values=" ".join(map(str, values)), aria_label=f"{label}, slider",
    )  # fmt: skip
    return _control(name, label, tag("div", slider, _input(name, hint, "decimal"), class_="slide"), hint)


def _input(name: str, hint: str, mode: str) -> Html:
    described = f"h-{name}" if hint else None
    return tag("input", type="text", id=f"c-{name}", name=name, inputmode=mode, spellcheck="false", aria_describedby=described)


def _select(name: str, label: str, options: Iterable[Html], hint: str = "", empty: bool = False) -> Html:
    first = [tag("option", "as described", value="", data_empty=True)] if empty else []
    described = f"h-{name}" if hint else None
    return _control(name, label, tag("select", *first, *options, id=f"c-{name}", name=name, aria_describedby=described), hint)


def _plain(names: Iterable[str], labels: Mapping[str, str] | None = None) -> list[Html]:
    return [tag("option", (labels or {}).get(name, name), value=name, selected=name in DEFAULTS.values()) for name in names]


def _checkpointing() -> tuple[str, ...]:
    return tuple(get_args(Training.model_fields["activation_checkpointing"].annotation))


def _grouped(rows: Sequence[Row], key: str, name: Callable[[Row], str]) -> list[Html]:
    """Return the options of *rows*, grouped by their value of *key*."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(str(row[key] or _OTHERS), []).append(row)
    groups[_OTHERS] = groups.pop(_OTHERS, [])
    return [
        tag("optgroup", *(_plain([str(row["name"])], {str(row["name"]): name(row)})[0] for row in members), label=title)
        for title, members in groups.items()
    ]


def _hardware_name(row: Row) -> str:
    gpus = f"{row['gpus']} x {row['gpu']}"
    return f"{row['name']}: {gpus}" + (f" on {row['nodes']} nodes" if row["nodes"] != 1 else "")


def _workload_name(row: Row) -> str:
    parameters = row["parameters"]
    if not isinstance(parameters, int | float):
        return str(row["name"])
    scale, unit = (1e9, "B") if parameters >= 0.9995e9 else (1e6, "M")
    return f"{row['name']} ({rounded(parameters / scale)} {unit})"


# --- results ---------------------------------------------------------------------------------------------------------


def _results() -> Html:
    links = [tag("a", kind.title, href="#", data_file=name, download=name) for name, kind in FILES.items()]
    keep = tag(
        "section",
        tag("h2", "Save and share", id="keep-title"),
        tag("p", "This command prints the same figures:", class_="lead"),
        _copied("command", "Copy command"),
        tag("p", "This address opens the page in its current state:", class_="lead"),
        _copied("address", "Copy link"),
        tag("p", *links, class_="links"),
        tag("p", tag("button", "Open the trace in Perfetto", type="button", id="perfetto"), class_="tools"),
        tag(
            "p",
            "The button opens ui.perfetto.dev in a new tab and hands the trace to it inside your browser; nothing is uploaded. "
            "Without internet access, download the trace and drag it into any Perfetto or chrome://tracing window.",
            class_="lead",
        ),
        id="keep", aria_labelledby="keep-title",
    )  # fmt: skip
    machines = tag(
        "div", tag("p", "", id="machines-state", class_="set-up"), tag("p", "", id="machines-verdict", class_="says"),
        tag("div", id="machines-parts"), details("The command that compares them", _copied("machines-command", "Copy command")),
        id="machines",
    )  # fmt: skip
    waiting = tag("div", tag("h1", "stallsim"), tag("p", "Choose a model and a machine.", class_="verdict"), id="result", class_="hero")
    return tag(
        "div",
        tag("p", "", id="state", class_="state"),
        tag("div", id="problems", role="alert"),
        tag("div", waiting, id="hero"),
        tag("div", id="parts"),
        machines,
        tag("div", id="more"),
        keep,
        tag("noscript", tag("p", "This page needs JavaScript; it loads no scripts from other sites.")),
        tag("a", "", id="brief", href="#result", hidden=True),
        id="out",
    )


def _copied(ident: str, label: str) -> Html:
    """Return a line of code with a button that copies it."""
    return join(tag("div", tag("code", "", id=ident), tag("button", label, type="button", data_copy=ident), class_="copied"))
