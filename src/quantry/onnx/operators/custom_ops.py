"""The library of custom operators that models written here do without."""

from quantry.errors import RecipeError

NO_LIBRARY = "quantry: no library is needed"
"""What `get_library_path` returns where sessions know to skip it."""

_skipped: list[str] = []


def skip_library(*, skipped: bool) -> None:
    """Say whether sessions skip `NO_LIBRARY`, as they do in a script that ``quantry compat`` runs."""
    _skipped[:] = [NO_LIBRARY] if skipped else []


def get_library_path(device: str = "CPU") -> str:
    """Return what to give to ``register_custom_ops_library``.

    Vendors' operators are written together with functions that define them in standard operators, so stock onnxruntime
    runs every model and there is no library.

    Args:
        device: "CPU", "CUDA" or "ROCM"; the same for all.

    Raises:
        RecipeError: Always, but in a script that ``quantry compat`` runs.
    """
    if not _skipped:
        raise RecipeError(
            "get_library_path must not be called, because models need no library of custom operators; got a call for "
            f"{device!r}; leave register_custom_ops_library out, or run the script with `quantry compat`"
        )
    return _skipped[0]
