"""Whose price does a machine have? One that was described by changing another machine may have a copy of that machine's price."""

from __future__ import annotations

from sim.spec.hardware import Hardware


def copied_prices(hardware: Hardware) -> list[str]:
    """Return a sentence that names the machines from which prices of *hardware* were copied; none if all are its own."""
    copies = {group.price.copied_from: group.price.region for group in hardware.groups if group.price and group.price.copied_from}
    if not copies:
        return []
    key = "" if len(hardware.groups) == 1 else "groups.N."
    machines = " and ".join(f"{machine}{f' ({region})' if region else ''}" for machine, region in copies.items())
    return [f"price and region are copied from {machines}, which {hardware.name} changes (--set {key}price.on_demand='10 USD/h')"]
