"""Start-up with torchrun: python -m torch.distributed.run --nproc-per-node 2 bench/peers/startup.py"""

import os

import torch
import torch.distributed as dist
from ranks import leave
from tiny import first_step

if torch.cuda.is_available():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
first_step()
dist.barrier()
leave()
