"""A pure function whose result can be kept."""

import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any, Generic, ParamSpec, TypeVar

from quantry.errors import InternalError
from quantry.memo._digest import Digest
from quantry.memo._fingerprint import fingerprint
from quantry.memo._storable import Storable

P = ParamSpec("P")
T = TypeVar("T", bound=Storable)

Environment = Callable[[], Mapping[str, str]]


class Stage(Generic[P, T]):
    """A pure function from values to a `Storable` value; made by the decorator `stage`.

    Calling it calls the plain function and keeps nothing; `Memo.run` is what reuses results.

    Attributes:
        name: The name in keys, traces and messages.
        version: Raised by hand whenever the same inputs would give another result, or the blob is written otherwise.
        environment: What the result depends on besides the arguments, as a function of no argument, or None.
        keep: Whether the store keeps results; otherwise each is made anew when its value is asked for.
        function: The plain function.
    """

    def __init__(
        self, function: Callable[P, T], name: str, version: int, environment: Environment | None, keep: bool = True
    ) -> None:
        self.name = name
        self.version = version
        self.environment = environment
        self.keep = keep
        self.function = function
        self._signature = inspect.signature(function)
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the plain function."""
        return self.function(*args, **kwargs)

    @functools.cached_property
    def result_type(self) -> type[T]:
        """The class named by the return annotation, which may be defined after the stage.

        Raises:
            InternalError: There is no such annotation, or its class cannot be read back from a blob.
        """
        try:
            annotation: Any = typing.get_type_hints(self.function).get("return")
        except NameError as error:
            raise InternalError(
                f"A stage's annotations must be importable at run time; {error}; at stage {self.name!r}."
            ) from error
        cls = typing.get_origin(annotation) or annotation
        if not hasattr(cls, "from_blob"):
            raise InternalError(
                f"A stage's return annotation must be a class with from_blob; got {annotation!r}; "
                f"at stage {self.name!r}."
            )
        return typing.cast("type[T]", cls)

    def bind(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> inspect.BoundArguments:
        """Return the arguments by parameter, defaults applied.

        Raises:
            TypeError: The arguments do not fit the function's parameters.
        """
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound

    def key(self, arguments: Mapping[str, object]) -> Digest:
        """Return the digest of everything a result depends on.

        Args:
            arguments: Parameter names to values or handles.

        Raises:
            InternalError: An argument has no defined content.
        """
        environment = dict(self.environment()) if self.environment is not None else {}
        inputs = {name: fingerprint(argument, f"{self.name}({name})") for name, argument in arguments.items()}
        return fingerprint(("stage", self.name, self.version, environment, inputs))

    def __repr__(self) -> str:
        return f"Stage({self.name}, version {self.version})"


def stage(
    *, name: str, version: int, environment: Environment | None = None, keep: bool = True
) -> Callable[[Callable[P, T]], Stage[P, T]]:
    """Make a pure function a stage, whose results a `Memo` keeps.

    The function takes values that have a `fingerprint` and returns a `Storable` that its return annotation names. It
    changes none of its arguments and reads nothing else: what it needs besides, such as the version of the library
    that runs a model, is told by `environment`.

    Args:
        name: The name in keys, traces and messages.
        version: Raise it whenever the same inputs give another result.
        environment: A function of no argument that returns texts by name, all part of the key.
        keep: False for a stage that is sooner run than its result is written and read. Such a result is known by its
            key, so that later stages can be reused without it, and is made when somebody asks for its value.

    Example:
        ::

            @stage(name="scale", version=1)
            def scale(statistics: Statistics, plan: QuantPlan, options: ScaleOptions) -> QuantParams: ...
    """

    def decorate(function: Callable[P, T]) -> Stage[P, T]:
        return Stage(function, name, version, environment, keep)

    return decorate
