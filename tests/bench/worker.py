"""What every launcher starts: join, one all-reduce, say when it was done."""

import os
import time
from pathlib import Path

started = time.time()
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

dist.init_process_group("gloo")
value = torch.ones(1)
dist.all_reduce(value)
if dist.get_rank() == 0:
    Path(os.environ["BENCH_OUT"]).write_text(f"{started} {time.time()}")
dist.destroy_process_group()
