"""What all peers share: a task's ranks as processes of one machine, and the sample that comes of them.

The formats are those of ../scenario: task.go says what is in a task file and in a sample.
"""

import json
import os
import platform
import shutil
import signal
import sys
import tempfile
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

FORMAT = 1
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def read_task(path):
    """The task of the file, where this side knows its format."""
    with open(path) as f:
        task = json.load(f)
    if task["format"] != FORMAT:
        sys.exit(f"{path}: format {task['format']}, and this peer knows format {FORMAT}; use one of the same gofsdp")
    return task


def write_sample(task, cases, **versions):
    """Writes what was measured to the task's out, whole or not at all."""
    versions = {"torch": torch.__version__, "python": platform.python_version(), "backend": backend(), **versions}
    temporary = task["out"] + ".part"
    with open(temporary, "w") as f:
        json.dump({"format": FORMAT, "versions": versions, "cases": cases}, f)
    os.replace(temporary, task["out"])


def backend():
    """NCCL where there is a GPU, else gloo."""
    return "nccl" if torch.cuda.is_available() else "gloo"


def device(rank):
    """Where a rank computes; one GPU each, where there are GPUs."""
    return torch.device("cuda", rank) if torch.cuda.is_available() else torch.device("cpu")


def run(work, ranks, task, *args):
    """Calls work(rank, task, *args) in that many processes, joined to one group, and returns what each returned."""
    if torch.cuda.is_available() and torch.cuda.device_count() < ranks:
        sys.exit(f"{ranks} ranks need {ranks} GPUs, and this machine has {torch.cuda.device_count()}")
    threads = task["work"]["threads"]
    # Read when a process starts, so they are set before any does. Ranks of one machine meet on its loopback.
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = str(threads)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # Beside the sample, whose place is cleared by whoever stops this with no time to tidy up.
    scratch = tempfile.mkdtemp(prefix="ranks-", dir=os.path.dirname(os.path.abspath(task["out"])))
    processes = mp.spawn(_rank, (work, ranks, threads, scratch, (task, *args)), nprocs=ranks, join=False)
    try:
        while not processes.join():
            pass
        return [_read(scratch, rank) for rank in range(ranks)]
    except (mp.ProcessExitedException, mp.ProcessRaisedException):
        # The kernel kills without a word, and memory is what it does so for. Other ranks may say
        # something first, but only that one is gone.
        killed = [rank for rank, p in enumerate(processes.processes) if p.exitcode == -signal.SIGKILL]
        if killed:
            sys.exit(f"out of memory: rank {killed[0]} was killed")
        raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _read(scratch, rank):
    with open(os.path.join(scratch, f"{rank}.json")) as f:
        return json.load(f)


def _rank(rank, work, ranks, threads, scratch, args):
    on = device(rank)
    if on.type == "cpu":
        bind(rank, ranks, threads)
    torch.set_num_threads(threads)
    if on.type == "cuda":
        torch.cuda.set_device(on)
    dist.init_process_group(
        backend(), init_method=f"file://{scratch}/meet", rank=rank, world_size=ranks,
        timeout=timedelta(minutes=30), device_id=on if on.type == "cuda" else None,
    )  # fmt: skip
    result = work(rank, *args)
    with open(os.path.join(scratch, f"{rank}.json"), "w") as f:
        json.dump(result, f)
    dist.barrier()
    leave()


def leave():
    """Ends a rank that is done, without taking its group down.

    Some ranks abort when PyTorch 2.13 ends gloo's threads ("terminate called without an active
    exception", one of ten), which would fail a run whose work is done.
    """
    sys.stdout.flush()
    os._exit(0)


def bind(rank, ranks, threads):
    """Gives a rank cores of its own where the ranks take all of them, as gofsdp does (cpu/cores_linux.go)."""
    cores = sorted(os.sched_getaffinity(0))
    if ranks > 1 and ranks * threads == len(cores):
        for thread in os.listdir("/proc/self/task"):
            os.sched_setaffinity(int(thread), cores[rank * threads : (rank + 1) * threads])


def finish(on):
    """Waits until the device has done all that it was given."""
    if on.type == "cuda":
        torch.cuda.synchronize(on)


def reset_peak(on):
    """Begins to measure the peak of memory anew."""
    if on.type == "cuda":
        torch.cuda.reset_peak_memory_stats(on)
        return
    with open("/proc/self/clear_refs", "w") as f:
        f.write("5")


def peak(on):
    """The greatest memory since reset_peak, in bytes: of a process what was resident, of a GPU what was reserved."""
    if on.type == "cuda":
        return torch.cuda.max_memory_reserved(on)
    with open("/proc/self/status") as f:
        return next(1024 * int(line.split()[1]) for line in f if line.startswith("VmHWM:"))
