"""How does a loader of the user's own feed a rank? It makes an `InputPipeline` in the place of torch's or DALI's.

``input.loader`` still says what reading and preparing a batch costs, since that is measured by loader; the user's object decides who
builds which batch when, and how many are ahead. It is simulated live, so what is wrong with it shows while it runs: that is told in one
sentence with its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol, cast

from sim.spec.extensions import LOADERS, called, extension, raised
from sim.spec.workload import Input
from sim.spec.yaml import SpecError
from sim.training.input_pipeline import InputPipeline, LoaderSite

_HAS: Final = ("site", "next_batch", "copy_to_gpu", "state", "since")


class Loader(Protocol):
    """Who builds which batch when; docs/develop/own-loader.md has one as an example."""

    @property
    def name(self) -> str:
        """What ``input.own_loader`` says."""

    def made(self, site: LoaderSite, options: Input) -> InputPipeline:
        """Return what feeds one rank: an `InputPipeline`, mostly a subclass of `sim.training.input_pipeline.Queue`.

        *site* reads and prepares batches on the node's disk and cores, *options* are those of ``input``.
        """


def own_pipeline(site: LoaderSite, options: Input, name: str) -> InputPipeline:
    """Return the pipeline that the loader *name* makes. Raise SpecError for what is none."""
    loader = cast(Loader, extension(LOADERS, name))
    made = called(LOADERS, name, lambda: loader.made(site, options))
    lacking = [attribute for attribute in _HAS if not hasattr(made, attribute)]
    if lacking:
        raise SpecError(f"loader {name}: makes no InputPipeline: it lacks {' and '.join(lacking)}; docs/develop/own-loader.md shows one")
    return cast(InputPipeline, made)


@contextmanager
def blamed(names: Sequence[str]) -> Iterator[None]:
    """Tell in a sentence what goes wrong while the loaders *names* of the user's run; errors without any pass as they are."""
    try:
        yield
    except SpecError:
        raise
    except Exception as error:
        if not names:
            raise
        raise SpecError(f"loader {' or '.join(names)}: {raised(error)}") from error
