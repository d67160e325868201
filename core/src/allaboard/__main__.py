"""``python -m allaboard``: the same as the command ``allaboard``."""

import sys

from allaboard.cli import main

if __name__ == "__main__":
    sys.exit(main())
