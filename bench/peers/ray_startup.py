"""Start-up with Ray Train, on a local Ray of its own: python bench/peers/ray_startup.py"""

import os
import tempfile

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # nothing is reported to anybody

import ray  # noqa: E402 (reads its environment when it is imported)
import torch  # noqa: E402
from ray.train import RunConfig, ScalingConfig  # noqa: E402
from ray.train.torch import TorchConfig, TorchTrainer  # noqa: E402


def worker():
    # Ray Train has joined the group. The import is the worker's, as the driver needs none of it.
    from tiny import first_step

    first_step()


def main():
    gpu = torch.cuda.is_available()
    # "local" is a fresh Ray, even where a cluster's address is set.
    ray.init("local")
    with tempfile.TemporaryDirectory() as storage:
        TorchTrainer(
            worker,
            torch_config=TorchConfig(backend="nccl" if gpu else "gloo"),
            scaling_config=ScalingConfig(num_workers=2, use_gpu=gpu),
            run_config=RunConfig(storage_path=storage),
        ).fit()
    ray.shutdown()


if __name__ == "__main__":
    main()
