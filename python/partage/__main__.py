"""`python -m partage` is `partage`."""

import sys

from partage.cli import main

if __name__ == "__main__":
    sys.exit(main())
