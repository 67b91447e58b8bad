"""How does a user-defined loader feed a rank? It creates an `InputPipeline` that replaces torch's or DALI's.

``input.loader`` still determines the cost of reading and preparing a batch, because costs are measured per loader. The user's object
decides who builds which batch when, and how many batches are ahead. It runs inside the simulation, so its errors appear during the run;
they are reported in one sentence with the loader's name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol, cast

from sim.spec.extensions import LOADERS, call_extension, error_text, extension
from sim.spec.input import Input
from sim.spec.yaml import SpecError
from sim.training.input_pipeline import InputPipeline, LoaderSite

_HAS: Final = ("site", "next_batch", "copy_to_gpu", "state", "since")


class Loader(Protocol):
    """Decides who builds which batch when. docs/develop/own-loader.md has an example."""

    @property
    def name(self) -> str:
        """The name that ``input.own_loader`` refers to."""

    def made(self, site: LoaderSite, options: Input) -> InputPipeline:
        """Return the `InputPipeline` of one rank, usually a subclass of `stallsim.protocols.Queue`.

        *site* reads and prepares batches on the node's disk and cores; *options* is the ``input`` section of the workload.
        """


def own_pipeline(site: LoaderSite, options: Input, name: str) -> InputPipeline:
    """Return the pipeline that the loader *name* creates. Raise SpecError if the result is not an `InputPipeline`."""
    loader = cast(Loader, extension(LOADERS, name))
    made = call_extension(LOADERS, name, lambda: loader.made(site, options))
    lacking = [attribute for attribute in _HAS if not hasattr(made, attribute)]
    if lacking:
        raise SpecError(
            f"loader {name}: does not return an InputPipeline: it lacks {' and '.join(lacking)}; docs/develop/own-loader.md shows one"
        )
    return cast(InputPipeline, made)


@contextmanager
def blame_loaders(names: Sequence[str]) -> Iterator[None]:
    """Convert exceptions to a SpecError that names the user's loaders *names*. Without any such loader, let exceptions pass unchanged."""
    try:
        yield
    except SpecError:
        raise
    except Exception as error:
        if not names:
            raise
        raise SpecError(f"loader {' or '.join(names)}: {error_text(error)}") from error
