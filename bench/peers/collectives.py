"""Collectives of torch.distributed, as a task says: python collectives.py --task FILE.

Those that FSDP2 itself calls, on fp32 tensors: over gloo, or NCCL where there are GPUs. They go
through memory as ../collectives.go does: buffers take turns, so that no data is still in a cache.
"""

import argparse
import sys
import time

import ranks
import torch
import torch.distributed as dist

MB = 1 << 20
WORKING = 256 * MB  # memory to go through before the same place comes again


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", required=True, help="what to do, as gofsdp bench writes it")
    task = ranks.read_task(parser.parse_args().task)
    work = task["work"]
    if work["kind"] != "collectives" or work["ranks"] < 2:
        sys.exit(f"collectives.py does collectives of two or more ranks, not {work['kind']!r} of {work['ranks']}")
    by_rank = ranks.run(measure, work["ranks"], task)
    ranks.write_sample(task, [slowest(parts) for parts in zip(*by_rank, strict=True)])


def slowest(parts):
    """A case of all ranks: from when the last of them came until the slowest was done.

    The ranks' clock is the machine's, so how unevenly a barrier lets them go costs the peer nothing.
    """
    began = zip(*(p["began"] for p in parts), strict=True)
    ended = zip(*(p["ended"] for p in parts), strict=True)
    return {"name": parts[0]["name"], "seconds": [max(e) - max(b) for b, e in zip(began, ended, strict=True)]}


def measure(rank, task):
    """One rank's part in all cases."""
    work = task["work"]
    world, on = work["ranks"], ranks.device(rank)
    cases = [case("barrier", Barrier(), work, on)]
    for kind in (AllGather, ReduceScatter, AllReduce, Broadcast):
        for size in work["sizes"]:
            length = size * MB // 4
            if length % world:
                raise ValueError(f"{size} MB cannot be parted among {world} ranks")
            collective = kind(rank, world, length, max(1, WORKING // (size * MB)), on)
            collective.check()
            cases.append(case(f"{kind.name} {size} MB", collective, work, on))
    return cases


def case(name, collective, work, on):
    """When each repetition began and ended on this rank."""
    # All places are gone through once before, which maps their pages.
    warm = max(work.get("warm", 0), collective.places)
    began, ended = [], []
    for i in range(-warm, work["timed"]):
        dist.barrier()
        ranks.finish(on)
        begin = time.perf_counter()
        collective.run(i % collective.places)
        ranks.finish(on)
        if i >= 0:
            began.append(begin)
            ended.append(time.perf_counter())
    return {"name": name, "began": began, "ended": ended}


class Barrier:
    places = 1

    def run(self, place):
        dist.barrier()


class Collective:
    """A collective over one tensor of length elements, at each of some places of memory."""

    def __init__(self, rank, world, length, places, on):
        self.rank, self.world, self.places = rank, world, places
        self.tensors = torch.zeros(places, length, device=on)
        self.parts = self.tensors.unflatten(1, (world, -1))[:, rank]

    def expect(self, got, want):
        if not torch.equal(got, torch.full_like(got, want)):
            raise RuntimeError(f"{self.name} of rank {self.rank} is wrong: {got} where all should be {want}")

    def check(self):
        """Holds one run, at the first place, against what it should give, and clears the memory again."""
        self.tensors[0].fill_(self.rank + 1)
        self.run(0)
        self.checked()
        self.tensors.zero_()


class AllGather(Collective):
    """Each rank's part is in its place of the whole already, as FSDP2 copies it."""

    name = "all-gather"

    def run(self, place):
        dist.all_gather_single(self.tensors[place], self.parts[place])

    def checked(self):
        for i, part in enumerate(self.tensors[0].chunk(self.world)):
            self.expect(part, i + 1)


class ReduceScatter(Collective):
    """The sum of each part goes to a tensor of its own, as FSDP2 has it."""

    name = "reduce-scatter"

    def __init__(self, *args):
        super().__init__(*args)
        self.sums = torch.zeros_like(self.parts)

    def run(self, place):
        dist.reduce_scatter_single(self.sums[place], self.tensors[place])

    def checked(self):
        self.expect(self.sums[0], self.world * (self.world + 1) / 2)


class AllReduce(Collective):
    name = "all-reduce"

    def run(self, place):
        dist.all_reduce(self.tensors[place])

    def checked(self):
        self.expect(self.tensors[0], self.world * (self.world + 1) / 2)


class Broadcast(Collective):
    name = "broadcast"

    def run(self, place):
        dist.broadcast(self.tensors[place], src=0)

    def checked(self):
        self.expect(self.tensors[0], 1)


if __name__ == "__main__":
    main()
