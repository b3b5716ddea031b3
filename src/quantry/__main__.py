"""``python -m quantry``: the command line."""

from quantry.cli.app import main

if __name__ == "__main__":
    main()
