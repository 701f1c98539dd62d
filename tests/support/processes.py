"""Programs of several processes, as of distributed training."""

import subprocess
import sys

# Processes are forked after the program's imports, which would take each of them seconds; Dynamo is imported by the
# first optimizer, checkpoint or DistributedDataParallel.
_START = """
import os
import sys
from datetime import timedelta

import torch
import torch._dynamo
import torch.distributed as dist

children = []
for rank in range(1, {count}):
    child = os.fork()
    if not child:
        children = []
        break
    children.append(child)
else:
    rank = 0
torch.set_num_threads(1)
group = {{"init_method": "file://" + sys.argv[1], "rank": rank, "world_size": {count}}}
dist.init_process_group("gloo", timeout=timedelta(seconds=120), **group)
"""

# The interpreter does not end: gloo's threads may abort if it does while one lets go of a tensor.
_END = """
dist.destroy_process_group()
sys.stdout.flush()
os._exit(any(os.waitpid(child, 0)[1] for child in children))
"""


def run_processes(imports, program, count, store):
    """Runs the program in so many processes, which find each other by the file `store`; each has its `rank`."""
    source = "\n".join([imports, _START.format(count=count), program, _END])
    command = [sys.executable, "-W", "ignore", "-c", source, str(store)]
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600)
    assert run.returncode == 0, run.stdout
