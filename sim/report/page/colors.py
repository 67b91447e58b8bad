"""Which colors does a page have in light and in dark mode? Tokens of its style sheet; those of causes come from `sim.causes`."""

from __future__ import annotations

from sim.causes import CAUSES, COLORS

LIGHT = {
    "ground": "#f5f4f0", "paper": "#ffffff", "ink": "#1b1f24", "muted": "#59616b", "line": "#dedbd3", "faint": "#efede7",
    "accent": "#c2410c", "link": "#1a5fb4", "edge": "rgb(0 0 0 / 0.28)", "idle": "#c9c5bb", "busy": "#4a5561",
}  # fmt: skip
DARK = {
    "ground": "#14171b", "paper": "#1c2026", "ink": "#eceae5", "muted": "#a7aeb8", "line": "#353c45", "faint": "#262b32",
    "accent": "#ff8f57", "link": "#8ab8f5", "edge": "rgb(255 255 255 / 0.22)", "idle": "#454d57", "busy": "#aeb6c0",
}  # fmt: skip
DARK_CAUSES = {cause.value: traits.dark for cause, traits in CAUSES.items() if traits.dark}

USES = {"fetch": "#cf5a9c", "launch": "#b8863f"}
"""Replacements for colors of causes that are too dark in dark mode."""

USES = {
    "weights": "#332288", "gradients": "#88ccee", "optimizer_state": "#44aa99", "activations": "#117733", "workspace": "#999933",
    "communication_buffers": "#ddcc77", "input": "#cc6677", "context": "#882255", "gathered": "#aa4499", "cached": "#dddddd",
}  # fmt: skip
"""Uses of GPU memory: Paul Tol's muted scheme."""
PARTS = {
    "start_up": "#99ddff", "first_epoch": "#ee8866", "later_epochs": "#77aadd", "evaluation": "#bbcc33", "checkpoints": "#eedd88",
    "revocations": "#ffaabb", "failures": "#44bb99",
}  # fmt: skip
"""Parts of a whole job: Paul Tol's light scheme."""
LOST = {
    "detection": "#ee8866", "restart": "#ffaabb", "rework": "#eedd88", "checkpoint": "#99ddff", "spare_wait": "#aaaa00",
    "degraded": "#bbcc33", "planned": "#dddddd",
}  # fmt: skip
"""Where the time of weeks is lost: Paul Tol's light scheme."""
DARK_USES = {"weights": "#8578dd", "activations": "#33a05f", "context": "#bb4d85"}


def style_tokens() -> str:
    """Return the style sheet's tokens: light, dark if the system or the reader prefers it, and light again in print."""
    causes = {cause.value: color for cause, color in COLORS.items()}
    light, dark = _tokens(LIGHT, causes | USES | PARTS | LOST), _tokens(DARK, causes | DARK_CAUSES | USES | PARTS | LOST | DARK_USES)
    return (
        f":root{{color-scheme:light;{light}}}"
        f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{color-scheme:dark;{dark}}}}}"
        f":root[data-theme=dark]{{color-scheme:dark;{dark}}}"
        f"@media print{{:root,:root[data-theme=dark],:root:not([data-theme=light]){{color-scheme:light;{light}}}}}"
    )


def _tokens(plain: dict[str, str], filled: dict[str, str]) -> str:
    colors = plain | filled | {f"on-{name}": _readable(color) for name, color in filled.items()}
    return "".join(f"--{name.replace('_', '-')}:{color};" for name, color in colors.items())


def _readable(color: str) -> str:
    """Return black or white, whichever has the higher contrast on *color*."""
    bright = luminance(color)
    return "#ffffff" if 1.05 / (bright + 0.05) > (bright + 0.05) / 0.05 else "#000000"


def luminance(color: str) -> float:
    """Return the relative luminance of ``#rrggbb`` (WCAG 2.2)."""
    parts = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def fill(name: str) -> str:
    """Return the style of a mark in the color of *name*: a cause, a use of memory, or a part of a job."""
    token = name.replace("_", "-")
    return f"background:var(--{token});color:var(--on-{token})"
