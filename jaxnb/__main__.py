"""``python -m jaxnb``: the same as ``jaxnb``."""

import sys

from jaxnb.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
