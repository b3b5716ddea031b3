"""All rows of the speed table, in its order. A new group is one file here and one line in `ROWS`."""

from benchmarks.harness import Row
from benchmarks.rows import (
    dialects,
    evaluating,
    growth,
    imports,
    latency,
    observing,
    quantize,
    reuse,
    search,
    techniques,
    tuning,
)

ROWS: tuple[Row, ...] = (
    *imports.ROWS,
    *observing.ROWS,
    *reuse.ROWS,
    *quantize.ROWS,
    *growth.ROWS,
    *evaluating.ROWS,
    *latency.ROWS,
    *dialects.ROWS,
    *techniques.ROWS,
    *tuning.ROWS,
    *search.ROWS,
)

__all__ = ["ROWS"]
