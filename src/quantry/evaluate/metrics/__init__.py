"""Built-in metrics: one file each, listed here in the order of reports.

To add one: a new file with a subclass of `Metric`, and its instance in `METRICS`.
"""

from quantry.errors import RecipeError, nearest_spelling
from quantry.evaluate.metrics.cosine import Cosine
from quantry.evaluate.metrics.l1 import L1
from quantry.evaluate.metrics.l2 import L2
from quantry.evaluate.metrics.metric import Metric
from quantry.evaluate.metrics.psnr import Psnr
from quantry.evaluate.metrics.sqnr import Sqnr
from quantry.evaluate.metrics.ssim import Ssim

__all__ = ["METRICS", "Metric", "find_metric"]

METRICS: tuple[Metric, ...] = (L1(), L2(), Cosine(), Psnr(), Ssim(), Sqnr())
"""Every built-in metric."""


def find_metric(name: str, where: str = "EvaluateOptions.metrics") -> Metric:
    """Return the metric of that name.

    Args:
        name: A metric's name or one of its aliases, upper or lower case.
        where: The field with the name, for the message.

    Returns:
        The metric.

    Raises:
        RecipeError: There is no such metric; the message has the nearest spelling.

    Example:
        >>> find_metric("COS").name
        'cosine'
    """
    known = {spelling: metric for metric in METRICS for spelling in (metric.name, *metric.aliases)}
    metric = known.get(name.casefold())
    if metric is None:
        names = ", ".join(metric.name for metric in METRICS)
        raise RecipeError(f"a metric must be one of {names}, got {name!r}{nearest_spelling(name, known)}; in {where}")
    return metric
