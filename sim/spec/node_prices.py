"""What does one node cost? Its on-demand and spot prices, with date, region and source, and the lowest prices of any region.

Which of them a run pays is decided in `sim.analysis.cost`; prices of the user's own replace them in `sim.spec.own_prices`.
"""

from sim.spec.fields import Price, Source, Spec


class DatedPrices(Spec):
    """An on-demand and a spot price of one node, each with its day."""

    on_demand: Price | None = None
    """On-demand price of one node; none: unknown."""
    spot: Price | None = None
    """Price of one spot (preemptible) node; none: unknown."""
    date: str = ""
    """Day or month of the prices; empty if unknown."""
    spot_date: str | None = None
    """Day or month of the spot price, if it differs from ``date``; empty if unknown. None: ``date``."""
    region: str = ""
    """Region of the on-demand price; empty if the source does not say."""

    @property
    def day_of_spot(self) -> str:
        """Return the day or month of the spot price; empty if unknown."""
        return self.date if self.spot_date is None else self.spot_date


class CheapestPrices(DatedPrices):
    """The lowest prices of one node in any of the provider's regions. They are for information: costs use those of the region."""

    spot_region: str = ""
    """Region with the lowest spot price; empty if the source does not say."""
    source: Source = "as given, without a source"


class Prices(DatedPrices):
    """The price of one node."""

    region: str = ""
    """The provider's region to which the prices apply; it also decides the carbon intensity of the electricity."""
    cheapest: CheapestPrices | None = None
    """The lowest prices in any region, for information; none: unknown, or the provider has one price for all regions."""
    copied_from: str = ""
    """The machine that has these prices, if this one extends it and changes its node; empty: they are this machine's own. Set for files
    that extend a machine without a price of their own."""
    source: Source = "as given, without a source"
