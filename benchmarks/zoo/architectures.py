"""All architectures of the sweep, by name: ``library/architecture``."""

from collections.abc import Callable

from benchmarks.zoo import from_timm, from_torchvision, from_transformers, from_ultralytics
from benchmarks.zoo.subject import Subject

_LIBRARIES = {
    "torchvision": from_torchvision.BUILDERS,
    "timm": from_timm.BUILDERS,
    "transformers": from_transformers.BUILDERS,
    "ultralytics": from_ultralytics.BUILDERS,
}

ARCHITECTURES: dict[str, Callable[[], Subject]] = {
    f"{library}/{name}": builder for library, builders in _LIBRARIES.items() for name, builder in builders.items()
}
