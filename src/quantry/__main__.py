"""``quantry`` and ``python -m quantry``: the command line."""

import sys

_INTERRUPTED = 130


def main() -> None:
    """Run the command line; Ctrl-C while its modules are loaded ends as quietly as later."""
    try:
        from quantry.cli.app import main as run
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(_INTERRUPTED)
    run()


if __name__ == "__main__":
    main()
