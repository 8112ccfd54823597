"""`python -m liveedge`: the command without an installed script."""

import sys

from liveedge.cli import main

if __name__ == "__main__":
    sys.exit(main())
