"""Makes fsdp/testdata/fsdp2 from PyTorch's FSDP2 (fully_shard) on two ranks over gloo, in fp32.

    python -m venv VENV && VENV/bin/pip install -r ../model/requirements.txt
    VENV/bin/python make.py ../../../fsdp/testdata/fsdp2

Each case is a file of the shape of the same name in model/testdata/golden, with the weights of
../model/formula.py: twenty AdamW steps of two ranks with two micro-batches each. A step's rows are
those of micro-batch 0 of rank 0, of micro-batch 0 of rank 1, of micro-batch 1 of rank 0, and so on.
Rows mask different numbers of targets, and a loss is a mean over the valid targets of the step, on
all ranks. So FSDP2 must add gradients up and not average them.

The same steps run without FSDP2 in one process first. Both must agree, or nothing is written.
"""

import contextlib
import io
import json
import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import transformers
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "model"))
from make import (  # noqa: E402 (the make.py of ../model)
    QWEN2_TIED,
    QWEN3,
    TRAINING,
    VERSIONS,
    build,
    cross_entropy,
    training_case,
)

RANKS, MICRO_BATCHES = 2, 2

# The clips lie among the norms, so that some steps are clipped and some are not.
CASES = {"qwen2-tied": (QWEN2_TIED, 4.0), "qwen3": (QWEN3, 2.5)}


def sharded(config):
    """The formula's model, each block a group of parameters and the rest another."""
    model = build(config).train()
    mesh = init_device_mesh("cpu", (RANKS,))
    for block in model.model.layers:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # A sum over ranks. Gloo has no sum of multiples, which is what a factor would become.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    return model


def whole(parameter):
    """All of a sharded parameter, in float64."""
    return parameter.detach().full_tensor().double()


def summed(x):
    """The sum of a number of each rank."""
    x = torch.tensor(x, dtype=torch.float64)
    dist.all_reduce(x)
    return x.item()


def run(rank, rendezvous, out, name, t, data):
    """One rank's run over the steps of data; rank 0 writes what came of it to out."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.logging.set_verbosity_error()
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=RANKS)

    model = sharded(CASES[name][0])
    before = {parameter: whole(p) for parameter, p in model.named_parameters()}
    # Norms and biases do not decay.
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    plain = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": t["weight_decay"]}, {"params": plain, "weight_decay": 0.0}],
        lr=0.0, betas=(t["beta1"], t["beta2"]), eps=t["eps"], foreach=False, fused=False,
    )  # fmt: skip
    steps = []
    for s in data:
        shape = (MICRO_BATCHES, RANKS, t["sequences"], t["sequence"])
        tokens, targets = (torch.tensor(s[key]).reshape(shape)[:, rank] for key in ("ids", "targets"))
        optimizer.zero_grad()
        loss = 0.0
        for m in range(MICRO_BATCHES):
            logits = model(input_ids=tokens[m], use_cache=False).logits
            share = cross_entropy(logits, targets[m], "sum") / s["valid"]
            share.backward()
            loss += share.item()
        for group in optimizer.param_groups:
            group["lr"] = s["lr"]
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), t["clip"]).full_tensor().item()
        optimizer.step()
        steps.append({**s, "loss": summed(loss), "norm": norm})
    final = []
    for parameter, p in model.named_parameters():
        w = whole(p)
        moved = (w - before[parameter]).norm().item()
        final.append({"name": parameter, "norm": w.norm().item(), "moved": moved})
    if rank == 0:
        with open(out, "w") as f:
            json.dump({"step": steps, "final": final}, f)
    dist.barrier()
    dist.destroy_process_group()


def compare(name, got, want):
    """Holds FSDP2 against one process: 1e-5, but for what Adam makes of gradients that are rounding."""

    def off(where, key, skip=()):
        pairs = zip(got[where], want[where], strict=True)
        return max(abs(g[key] / w[key] - 1) for g, w in pairs if not w.get("name", "").endswith(skip))

    # A key bias moves all scores of a query alike, so only RoPE gives it a gradient.
    key_bias = ("k_proj.bias",)
    for where, key, skip, limit in (
        ("step", "loss", (), 1e-5),
        ("step", "norm", (), 1e-5),
        ("final", "norm", key_bias, 1e-5),
        ("final", "moved", key_bias, 1e-3),
        ("final", "norm", (), 1e-3),
    ):
        o = off(where, key, skip)
        print(f"   {where} {key}{' without key biases' if skip else ''}: off by {o:.1e}, at most {limit:.0e}")
        assert o <= limit, f"{name}: FSDP2's {where} {key} is off by {o}"


def make(root, name):
    config, clip = CASES[name]
    t = {**TRAINING, "clip": clip, "micro_batches": RANKS * MICRO_BATCHES}
    print(name)
    with contextlib.redirect_stdout(io.StringIO()):
        one = training_case(config, t)
    with tempfile.TemporaryDirectory() as scratch:
        out = os.path.join(scratch, "out.json")
        rendezvous = os.path.join(scratch, "rendezvous")
        mp.spawn(run, (rendezvous, out, name, t, one["step"]), nprocs=RANKS)
        with open(out) as f:
            result = json.load(f)
    compare(name, result, one)
    clipped = sum(s["norm"] > clip for s in result["step"])
    assert 0 < clipped < len(result["step"]), f"{name}: {clipped} steps were clipped"
    print(f"   {clipped} of {len(result['step'])} steps clipped")

    t = {k: v for k, v in t.items() if k != "steps"}
    case = {"format": 1, "case": name, "versions": VERSIONS, "ranks": RANKS, **t, "micro_batches": MICRO_BATCHES}
    fields = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in case.items()]
    # One line a step and a parameter keep the file readable and a change reviewable.
    for k, rows in result.items():
        fields.append(f"{json.dumps(k)}: [\n" + ",\n".join(json.dumps(r) for r in rows) + "\n]")
    os.makedirs(root, exist_ok=True)
    with open(os.path.join(root, name + ".json"), "w") as f:
        f.write("{\n" + ",\n".join(fields) + "\n}\n")


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.logging.set_verbosity_error()
    for name in CASES:
        make(sys.argv[1], name)


if __name__ == "__main__":
    main()
