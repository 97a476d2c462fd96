"""Holds fsdp2.py against training without FSDP2: python bench/peers/check.py

On small models of each family, two ranks must have the losses of one process that trains on all the
tokens. It is written anew here, in the plainest way, so that a mistake is not made twice.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

import numpy as np
import torch
import transformers

HERE = os.path.dirname(os.path.abspath(__file__))
SEQUENCES, LENGTH, RANKS, STEPS, ROWS = 2, 64, 2, 8, 24  # rows are used up, and used again
OPTIMIZER = {"lr": 3e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "clip": 0.8}
SHAPE = dict(
    vocab_size=515, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    intermediate_size=160, max_position_embeddings=128, pad_token_id=None, bos_token_id=None, eos_token_id=None,
)  # fmt: skip
MODELS = {
    "qwen2": transformers.Qwen2Config(**SHAPE, tie_word_embeddings=True),
    "qwen3": transformers.Qwen3Config(**SHAPE, head_dim=32, tie_word_embeddings=False),
    "llama": transformers.LlamaConfig(**SHAPE, tie_word_embeddings=True),
}
# How far losses may be from the plain ones, relatively. Without clipping or decay they were off by 3e-4 to
# 1e-3 in fp32, and by 7e-4 where fp32 stood for bf16. Two ranks round their bf16 gradients apart, and a
# compiled block rounds less often between its operations.
LIMITS = {"f32": 2e-5, "bf16": 5e-4}
COMPILED_LIMITS = {"f32": 2e-5, "bf16": 1e-3}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--eager", action="store_true", help="leave torch.compile out, which takes minutes")
    eager_only = parser.parse_args().eager
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as scratch:
        for family, precision, micro_batches in [
            ("qwen2", "f32", 1), ("qwen2", "bf16", 1), ("qwen3", "f32", 2), ("qwen3", "bf16", 2), ("llama", "f32", 1),
        ]:  # fmt: skip
            task = prepare(os.path.join(scratch, family), MODELS[family], precision, micro_batches)
            want = plain(task)
            if want[-1] > want[0] - 0.2:
                sys.exit(f"{family}: the losses hardly fall, {want}, so a wrong optimizer would not be noticed")
            for flags in [[]] if eager_only else [[], ["--compile"]]:
                what = " ".join([family, precision, f"{micro_batches} micro-batches", *flags])
                case = peer(task, flags)
                limit = (COMPILED_LIMITS if flags else LIMITS)[precision]
                off = max(abs(g / w - 1) for g, w in zip(case["losses"], want, strict=True))
                print(f"{what}: losses off by {off:.1e}, at most {limit:.0e}", flush=True)
                if off > limit:
                    sys.exit(f"{what}: {case['losses']} where plain training has {want}")
                if len(case["seconds"]) != STEPS - 2 or len(case["peak_bytes"]) != RANKS:
                    sys.exit(f"{what}: not all was measured: {case}")
                if case["tokens"] != RANKS * micro_batches * SEQUENCES * LENGTH:
                    sys.exit(f"{what}: a step is of {case['tokens']} tokens")


def prepare(directory, config, precision, micro_batches):
    """A task, with a model to start from and tokens that can be learnt."""
    os.makedirs(directory, exist_ok=True)
    torch.manual_seed(1)
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(directory)
    # A walk of small strides, so that the next token is easier to tell than by chance.
    strides = np.random.default_rng(1).integers(0, 4, (ROWS, LENGTH + 1))
    (strides.cumsum(axis=1) % 64).astype("<i4").tofile(os.path.join(directory, "tokens"))
    work = {
        "kind": "steps", "precision": precision, "length": LENGTH, "sequences": SEQUENCES, "ranks": RANKS, "threads": 1,
        "warm": 2, "timed": STEPS - 2, "cases": [{"name": "step", "strategy": "full_shard", "micro_batches": micro_batches}],
    }  # fmt: skip
    return {
        "format": 1, "work": work, "start": directory, "tokens": os.path.join(directory, "tokens"),
        "optimizer": OPTIMIZER, "out": os.path.join(directory, "out.json"),
    }  # fmt: skip


def plain(task):
    """The losses of one process that takes all rows of a step as one batch."""
    work, o = task["work"], task["optimizer"]
    master = transformers.AutoModelForCausalLM.from_pretrained(task["start"], dtype=torch.float32).train()
    computes = master
    if work["precision"] == "bf16":  # a copy of the masters, made anew for each step
        computes = transformers.AutoModelForCausalLM.from_pretrained(task["start"], dtype=torch.bfloat16).train()
    groups = [
        {"params": [p for p in master.parameters() if p.ndim >= 2], "weight_decay": o["weight_decay"]},
        {"params": [p for p in master.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=o["lr"], betas=(o["beta1"], o["beta2"]), eps=o["eps"], foreach=False)
    rows = torch.from_numpy(np.fromfile(task["tokens"], "<i4").reshape(-1, LENGTH + 1)).long()
    batch = RANKS * work["cases"][0]["micro_batches"] * SEQUENCES
    losses = []
    for step in range(STEPS):
        tokens = rows[[(step * batch + i) % ROWS for i in range(batch)]]
        with torch.no_grad():
            for p, m in zip(computes.parameters(), master.parameters(), strict=True):
                p.copy_(m)
        computes.zero_grad()
        logits = computes(input_ids=tokens[:, :-1], use_cache=False).logits.float()
        loss = -logits.log_softmax(-1).gather(-1, tokens[:, 1:, None]).mean()
        loss.backward()
        for p, m in zip(computes.parameters(), master.parameters(), strict=True):
            m.grad = p.grad.float()
        torch.nn.utils.clip_grad_norm_(master.parameters(), o["clip"])
        optimizer.step()
        losses.append(loss.item())
    return losses


def peer(task, flags):
    """What fsdp2.py measures of the task."""
    path = task["out"] + ".task"
    with open(path, "w") as f:
        json.dump(task, f)
    subprocess.run([sys.executable, os.path.join(HERE, "fsdp2.py"), "--task", path, *flags], check=True)
    with open(task["out"]) as f:
        return json.load(f)["cases"][0]


if __name__ == "__main__":
    main()
