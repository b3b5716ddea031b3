"""Writes the golden files anew: ``python tests/golden/regenerate.py``. Review what it changed as text.

It refuses to replace the digest of a stage whose version was not raised. Where that version was never released, or the
golden case itself was changed, delete the stage's lines from stages.txt first.
"""

import sys

from golden_graphs import write_graphs
from golden_stages import current, moved, read_golden, write_golden


def main() -> None:
    """Write digests and graphs, or say why not."""
    now = current()
    refused = moved(read_golden(), now)
    if refused:
        sys.exit("\n".join(refused))
    write_golden(now)
    write_graphs()


if __name__ == "__main__":
    main()
