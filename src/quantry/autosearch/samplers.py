"""Who chooses what is tried next: factories of Optuna's samplers."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quantry.errors import MissingExtraError

if TYPE_CHECKING:
    import optuna

Factory = Callable[[int], "optuna.samplers.BaseSampler"]


@dataclass(frozen=True)
class SamplerKind:
    """A sampler and what it needs.

    Attributes:
        make: Returns the sampler for a seed.
        flat: It learns only from a space in which every parameter exists in every trial, as a number.
        needs: Packages it needs beyond Optuna.
        one_seed: Its sequence belongs to one seed; others get a new one for each draw, so that a search that goes on
            after an interruption draws what it would have drawn.
    """

    make: Factory
    flat: bool = False
    needs: tuple[str, ...] = ()
    one_seed: bool = False


def _random(seed: int) -> "optuna.samplers.BaseSampler":
    import optuna

    return optuna.samplers.RandomSampler(seed=seed)


def _tpe(seed: int) -> "optuna.samplers.BaseSampler":
    import optuna

    # The liar keeps trials that are still running from being proposed again.
    return optuna.samplers.TPESampler(seed=seed, constant_liar=True)


def _cmaes(seed: int) -> "optuna.samplers.BaseSampler":
    import optuna

    return optuna.samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False)


def _gp(seed: int) -> "optuna.samplers.BaseSampler":
    import optuna

    return optuna.samplers.GPSampler(seed=seed, deterministic_objective=True)


def _nsga2(seed: int) -> "optuna.samplers.BaseSampler":
    import optuna

    return optuna.samplers.NSGAIISampler(seed=seed, population_size=16)


def _qmc(seed: int) -> "optuna.samplers.BaseSampler":
    import optuna

    return optuna.samplers.QMCSampler(
        seed=seed, scramble=True, warn_independent_sampling=False, warn_asynchronous_seeding=False
    )


KINDS: dict[str, SamplerKind] = {
    "random": SamplerKind(_random),
    "tpe": SamplerKind(_tpe),
    "cmaes": SamplerKind(_cmaes, flat=True, needs=("cmaes",)),
    "gp": SamplerKind(_gp, flat=True, needs=("scipy", "torch")),
    "nsga2": SamplerKind(_nsga2),
    "qmc": SamplerKind(_qmc, flat=True, needs=("scipy",), one_seed=True),
}
"""Samplers by their name in `SearchOptions`; "grid" needs none."""


def check_sampler(name: str) -> None:
    """Check that what a sampler needs is installed.

    Raises:
        MissingExtraError: It is not.
    """
    for package in KINDS[name].needs if name in KINDS else ():
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise MissingExtraError(
                f"the sampler {name!r} needs the package {package!r}, which is not installed; install quantry[search]"
                f"{' and quantry[torch]' if package == 'torch' else ''}, or use sampler='tpe'"
            ) from error
