"""A command that exits 1: what the second exercise tries again. Each try says so in a log of its own."""

import os
import sys
import time

print(f"{time.strftime('%H:%M:%S')} {os.environ.get('ALLABOARD_MEMBER')}: this cannot work", flush=True)
sys.exit(1)
