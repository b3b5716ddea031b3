"""Optuna's samplers: how they are created, and how assignments are written to and read from an Optuna study."""

import importlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quantry.autosearch.parameter import Choice, Parameter, Uniform, first_value, is_active
from quantry.autosearch.space import Assignment, Space
from quantry.errors import MissingExtraError

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution

# The parameter that chooses between several spaces.
_SPACE = "space"
_LABEL_LENGTH = 60


@dataclass(frozen=True)
class SamplerKind:
    """A sampler and its requirements.

    Attributes:
        make: Returns the sampler for a seed.
        flat: The sampler works on a continuous space: every parameter must exist in every trial, as a number.
        needs: Packages it needs besides Optuna.
        one_seed: The sampler produces one fixed sequence per seed. All others get a new seed for each draw, so that a
            resumed search draws what an uninterrupted one would have drawn.
    """

    make: Callable[[int], "optuna.samplers.BaseSampler"]
    flat: bool = False
    needs: tuple[str, ...] = ()
    one_seed: bool = False


# Optuna is imported in the functions: importing it takes half a second, which `import quantry` must not.


def _random(seed: int) -> "optuna.samplers.BaseSampler":
    import optuna

    return optuna.samplers.RandomSampler(seed=seed)


def _tpe(seed: int) -> "optuna.samplers.BaseSampler":
    import optuna

    # The constant liar gives running trials a bad score, so that they are not proposed a second time.
    return optuna.samplers.TPESampler(seed=seed, constant_liar=True)


def _cmaes(seed: int) -> "optuna.samplers.BaseSampler":
    import optuna

    return optuna.samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False)


def _gp(seed: int) -> "optuna.samplers.BaseSampler":
    import optuna

    return optuna.samplers.GPSampler(seed=seed, deterministic_objective=True)


def _nsga2(seed: int) -> "optuna.samplers.BaseSampler":
    import optuna

    # Optuna's default of 50 trials per generation is more than most searches here run in total.
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
    """Check that the packages of a sampler are installed.

    Raises:
        MissingExtraError: One is missing.
    """
    for package in KINDS[name].needs if name in KINDS else ():
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise MissingExtraError(
                f"the sampler {name!r} needs the package {package!r}, which is not installed; install quantry[search]"
                f"{' and quantry[torch]' if package == 'torch' else ''}, or use sampler='tpe'"
            ) from error


def plain_values(space: Space, assignment: Assignment) -> dict[str, Any]:
    """Return an assignment as numbers: a choice as the index of its value."""
    return {name: _plain(space.parameters[name], value) for name, value in assignment.items()}


def from_plain_values(space: Space, plain: Mapping[str, Any]) -> Assignment:
    """Read what `plain_values` returned."""
    return {
        name: parameter.values[value] if isinstance(parameter, Choice) else value
        for name, value in plain.items()
        for parameter in (space.parameters[name],)
    }


def study_params(
    spaces: Sequence[Space], index: int, assignment: Assignment, *, flat: bool = False
) -> tuple[dict[str, Any], dict[str, "BaseDistribution"]]:
    """Return the values and distributions of an assignment for an Optuna trial.

    Args:
        spaces: All spaces.
        index: Which of them the assignment is from.
        assignment: The values.
        flat: Write choices as integers and inactive parameters with their first value, because samplers of continuous
            spaces learn only from parameters that all trials have, as numbers.
    """
    params: dict[str, Any] = {}
    distributions: dict[str, BaseDistribution] = {}
    if len(spaces) > 1:
        distributions[_SPACE] = _space_distribution(spaces)
        params[_SPACE] = index
    for name, parameter in spaces[index].parameters.items():
        if _is_constant(parameter) or (name not in assignment and not flat):
            continue
        key = _key(spaces, index, name)
        distributions[key] = _distribution(parameter, flat=flat)
        value = assignment[name] if name in assignment else first_value(parameter)
        plain = _plain(parameter, value)
        params[key] = _labels(parameter)[plain] if isinstance(parameter, Choice) and not flat else plain
    return params, distributions


def suggest(trial: "optuna.trial.Trial", spaces: Sequence[Space], *, flat: bool = False) -> tuple[int, Assignment]:
    """Ask the sampler for a space and an assignment.

    Args:
        trial: An Optuna trial from ``study.ask()``.
        spaces: All spaces.
        flat: Ask for every parameter, including inactive ones, so that all trials have the same parameters.
    """
    index = 0
    if len(spaces) > 1:
        index = trial._suggest(_SPACE, _space_distribution(spaces))
    chosen: dict[str, Any] = {}
    for name, parameter in spaces[index].parameters.items():
        active = is_active(parameter, chosen)
        if not active and not flat:
            continue
        value = _suggested(trial, _key(spaces, index, name), parameter, flat=flat)
        if active:
            chosen[name] = value
    return index, chosen


def _suggested(trial: "optuna.trial.Trial", key: str, parameter: Parameter, *, flat: bool) -> Any:
    if _is_constant(parameter):
        return first_value(parameter)
    written = trial._suggest(key, _distribution(parameter, flat=flat))
    if not isinstance(parameter, Choice):
        return written
    return parameter.values[written if flat else _labels(parameter).index(written)]


def _is_constant(parameter: Parameter) -> bool:
    return len(parameter.values) == 1 if isinstance(parameter, Choice) else parameter.low == parameter.high


def _key(spaces: Sequence[Space], index: int, name: str) -> str:
    # A study allows one distribution per name, but two spaces may use the same name with different values.
    return name if len(spaces) == 1 else f"{index}/{name}"


def _plain(parameter: Parameter, value: Any) -> Any:
    if not isinstance(parameter, Choice):
        return value
    return next(
        index
        for index, other in enumerate(parameter.values)
        if other is value or (type(other) is type(value) and other == value)
    )


def _labels(parameter: Choice) -> list[str]:
    # The index makes labels unique, the text makes them readable in Optuna's dashboard.
    return [f"{index}: {str(value)[:_LABEL_LENGTH]}" for index, value in enumerate(parameter.values)]


def _space_distribution(spaces: Sequence[Space]) -> "BaseDistribution":
    from optuna.distributions import CategoricalDistribution

    return CategoricalDistribution(tuple(range(len(spaces))))


def _distribution(parameter: Parameter, *, flat: bool) -> "BaseDistribution":
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(parameter, Choice):
        labels = _labels(parameter)
        return IntDistribution(0, len(labels) - 1) if flat else CategoricalDistribution(tuple(labels))
    if isinstance(parameter, Uniform):
        return FloatDistribution(parameter.low, parameter.high, log=parameter.log, step=parameter.step)
    # Optuna warns if the range is not a multiple of the step.
    high = parameter.high - (parameter.high - parameter.low) % parameter.step
    return IntDistribution(parameter.low, high, log=parameter.log, step=parameter.step)


def import_optuna() -> None:
    """Import Optuna, which a search does first.

    Optuna imports progress bars that ask for widgets in a notebook without them; the search shows a table of its own.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="IProgress not found")
        import optuna  # noqa: F401


@contextmanager
def quiet_optuna() -> Iterator[None]:
    """Silence everything except errors of Optuna."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
            warnings.filterwarnings("ignore", category=UserWarning, module=r"optuna\..*")
            yield
    finally:
        optuna.logging.set_verbosity(before)
