"""Training steps with PyTorch's FSDP2, eager or compiled, as a task says: python fsdp2.py --task FILE [--compile] [--tuned [products]].

The step is what the FSDP2 tutorial and torchtitan do: transformers' model with SDPA, built on the
meta device; each block and the rest a group of fully_shard; fp32 master weights, which in bf16 are
gathered as bf16 while gradients are reduced in fp32; AdamW and clipping on shards. On GPUs it runs
over NCCL, else over gloo; nothing else differs.
"""

import argparse
import contextlib
import ctypes
import gc
import json
import os
import shutil
import sys
import time

import numpy as np
import ranks
import torch
import torch.distributed as dist
import torch.nn.functional as F
import transformers
import tuned
from safetensors import safe_open
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import distribute_tensor


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", required=True, help="what to do, as gofsdp bench writes it")
    parser.add_argument("--compile", action="store_true", help="torch.compile each block and the loss")
    parser.add_argument("--tuned", nargs="?", choices=["all", "products"], const="all", help="with settings that a user does not have by default, see tuned.py; all of them, or that of products alone")
    options = parser.parse_args()

    task = ranks.read_task(options.task)
    case = the_case(task["work"])
    if options.compile:
        prepare_compiler()
    if options.tuned:
        tuned.tune(keep=options.tuned == "all")
    world = case["ranks"]
    by_rank = ranks.run(train, world, task, case, options.compile)

    work = task["work"]
    measured = {
        "name": case["name"],
        "seconds": [max(seconds) for seconds in zip(*(r["seconds"] for r in by_rank), strict=True)],
        "tokens": world * case["micro_batches"] * work["sequences"] * work["length"],
        # Every rank has as many targets, so the mean of their means is the mean.
        "losses": [sum(losses) / world for losses in zip(*(r["losses"] for r in by_rank), strict=True)],
        "peak_bytes": [r["peak"] for r in by_rank],
    }
    ranks.write_sample(task, [measured], transformers=transformers.__version__)


def the_case(work):
    """The one case of the work, with the defaults that a scenario may leave out."""
    cases = work.get("cases") or []
    if work["kind"] != "steps" or len(cases) != 1:
        sys.exit(f"fsdp2.py does one case of training steps, and the task has {len(cases)} of {work['kind']!r}")
    case = {"micro_batches": 1, "ranks": work["ranks"], "mesh": "", "recompute": "none", **cases[0]}
    if case["strategy"] != "full_shard" or case["mesh"] or case["recompute"] != "none":
        sys.exit(f"fsdp2.py does full_shard on one node without recomputation, not {cases[0]}")
    if work["precision"] not in ("f32", "bf16"):
        sys.exit(f"fsdp2.py computes in f32 or bf16, not in {work['precision']!r}")
    return case


def prepare_compiler():
    """Keeps what Inductor compiles for the next run, in place of a directory of the system's."""
    if os.access(ranks.ROOT, os.W_OK):
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.join(ranks.ROOT, ".cache", "torchinductor"))
    if not torch.cuda.is_available():
        # Ranks already take the cores; more processes that compile would only wait for them.
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        sys.exit(f"--compile needs a C++ compiler, and there is no {compiler}; install one, e.g. apt-get install g++, or set CXX")


def train(rank, task, case, compiled):
    """One rank's steps: seconds of those that are timed, losses of all, and the peak of memory after the first."""
    work, on = task["work"], ranks.device(rank)
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    model, loss_of = build(task["start"], work["precision"], case["ranks"], on, compiled)
    optimizer = adamw(model, task["optimizer"])
    rows = Rows(task, case, rank, on)
    micro_batches = case["micro_batches"]

    def forward_backward(ids, targets):
        loss = loss_of(model(input_ids=ids, use_cache=False).logits, targets) / micro_batches
        loss.backward()
        return loss.detach()

    def step(number):
        optimizer.zero_grad(set_to_none=True)
        loss = sum(forward_backward(*rows.of(number, m)) for m in range(micro_batches))
        torch.nn.utils.clip_grad_norm_(model.parameters(), task["optimizer"]["clip"])
        optimizer.step()
        return loss

    if compiled:
        # Compiles all there is before the first step, which is then as cheap as the others.
        for _ in range(2):
            forward_backward(*rows.of(0, 0))
            optimizer.zero_grad(set_to_none=True)
    losses, seconds = [], []
    for number in range(work["warm"] + work["timed"]):
        if number == work["warm"]:
            graphs = compilations()
        dist.barrier()
        began = time.perf_counter()
        losses.append(step(number))
        ranks.finish(on)
        dist.barrier()
        if number >= work["warm"]:
            seconds.append(time.perf_counter() - began)
        if number == 0:
            ranks.reset_peak(on)
    if compilations() != graphs:
        raise RuntimeError("something was compiled in a step that is timed; take more warm steps")
    # Losses are looked at when all is done: reading one makes the host wait for the device.
    return {"seconds": seconds, "losses": [loss.item() for loss in losses], "peak": ranks.peak(on)}


def build(start, precision, world, on, compiled):
    """The model of the directory, sharded, and its loss."""
    config = transformers.AutoConfig.from_pretrained(start)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.float32)
    model.train()
    loss_of = cross_entropy
    if compiled:
        # The forward alone, so that FSDP2's hooks stay outside of the graph.
        for block in model.model.layers:
            block.forward = torch.compile(block.forward, fullgraph=True, dynamic=False)
        loss_of = torch.compile(cross_entropy, fullgraph=True, dynamic=False)
    mesh = init_device_mesh(on.type, (world,))
    policy = MixedPrecisionPolicy()
    if precision == "bf16":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.model.layers:
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
    # By default the root alone stays gathered after the forward: its head is the first in the backward.
    fully_shard(model, mesh=mesh, mp_policy=policy)
    model.to_empty(device=on)
    load(model, start, on)
    return model, loss_of


def load(model, start, on):
    """Fills the shards from the directory's weights, a tensor at a time: no rank ever has the whole model."""
    if model.config.tie_word_embeddings:  # to_empty made them two
        model.lm_head.weight = model.model.embed_tokens.weight
    # The frequencies of RoPE are in no file.
    model.model.rotary_emb = type(model.model.rotary_emb)(config=model.config).to(on)
    names = shards_of(start)
    with contextlib.ExitStack() as stack:
        files = {}
        for name, parameter in model.named_parameters():
            path = names[name]
            if path not in files:
                files[path] = stack.enter_context(safe_open(path, framework="pt"))
            whole = files[path].get_tensor(name).to(on)
            shard = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
            with torch.no_grad():
                parameter.copy_(shard)
    if on.type == "cpu":
        # What loading has freed is given back, so that it does not count as the training's.
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)


def shards_of(start):
    """The file of each tensor of a Hugging Face directory."""
    index = os.path.join(start, "model.safetensors.index.json")
    if os.path.exists(index):
        with open(index) as f:
            return {name: os.path.join(start, file) for name, file in json.load(f)["weight_map"].items()}
    path = os.path.join(start, "model.safetensors")
    with safe_open(path, framework="pt") as f:
        return dict.fromkeys(f.keys(), path)


def cross_entropy(logits, targets):
    """The mean over the targets, in fp32 as transformers' own loss."""
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def adamw(model, o):
    """AdamW with two groups: norms and biases do not decay. On a CPU, too, the fused one is the fastest."""
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    plain = [p for p in model.parameters() if p.ndim < 2]
    return torch.optim.AdamW(
        [{"params": decayed, "weight_decay": o["weight_decay"]}, {"params": plain, "weight_decay": 0.0}],
        lr=o["lr"], betas=(o["beta1"], o["beta2"]), eps=o["eps"], fused=True,
    )  # fmt: skip


class Rows:
    """The task's tokens, of which a rank takes its own."""

    def __init__(self, task, case, rank, on):
        work = task["work"]
        self.rank, self.ranks, self.micro_batches = rank, case["ranks"], case["micro_batches"]
        self.sequences, self.on = work["sequences"], on
        self.rows = np.memmap(task["tokens"], dtype="<i4", mode="r").reshape(-1, work["length"] + 1)

    def of(self, step, micro_batch):
        """Inputs and targets of a micro-batch; rows that are used up are used again."""
        first = ((step * self.micro_batches + micro_batch) * self.ranks + self.rank) * self.sequences
        chosen = np.arange(first, first + self.sequences) % len(self.rows)
        tokens = torch.from_numpy(self.rows[chosen].astype(np.int64)).to(self.on)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def compilations():
    """How many graphs have been compiled; none where the compiler is not even loaded, which takes memory."""
    if "torch._dynamo" not in sys.modules:
        return 0
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


if __name__ == "__main__":
    main()
