"""Writes the golden files: ``python tests/golden/regenerate.py``. Review its changes as text.

It does not replace the digest of a stage whose version was not raised. If that version was never released, or if the
golden case itself changed, delete the stage's lines from stages.txt first.
"""

import sys

from golden_graphs import write_graphs
from golden_pairs import write_pairs
from golden_stages import current, moved, read_golden, write_golden


def main() -> None:
    """Write digests and graphs, or exit with the stages whose version must be raised."""
    now = current()
    refused = moved(read_golden(), now)
    if refused:
        sys.exit("\n".join(refused))
    write_golden(now)
    write_graphs()
    write_pairs()


if __name__ == "__main__":
    main()
