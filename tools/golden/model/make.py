"""Makes model/testdata/golden from Hugging Face transformers and PyTorch, on a CPU in fp32.

    python -m venv VENV && VENV/bin/pip install -r requirements.txt
    VENV/bin/python make.py ../../../model/testdata/golden

Each case is a directory:

    config.json          as transformers writes it
    case.json            versions, ids, targets, loss, greedy continuations, training curve
    tensors.safetensors  logits [batch, sequence, vocabulary] and grad/NAME of every parameter

Weights and ids come from formula.py. Targets are the next token, -1 where there is none.
"""

import hashlib
import json
import math
import os
import platform
import sys

import numpy as np
import safetensors
import torch
import transformers
from safetensors.numpy import save_file
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from formula import ids, weight

VERSIONS = {
    "python": platform.python_version(),
    "torch": torch.__version__,
    "transformers": transformers.__version__,
    "numpy": np.__version__,
    "safetensors": safetensors.__version__,
}

# No token may end a generation, so that every continuation has its full length.
COMMON = dict(
    bos_token_id=None, eos_token_id=None, pad_token_id=None, max_position_embeddings=128, hidden_act="silu"
)

# Odd on purpose: 9 heads on 3, head sizes 16, 64 and 80, vocabularies 33 and 257, and MLP widths
# that no vector length divides.
QWEN2_TIED = Qwen2Config(
    vocab_size=33, hidden_size=144, num_hidden_layers=2, num_attention_heads=9, num_key_value_heads=3,
    intermediate_size=37, tie_word_embeddings=True, rms_norm_eps=1e-6,
    rope_parameters={"rope_type": "default", "rope_theta": 1e6}, **COMMON,
)  # fmt: skip
QWEN2_UNTIED = Qwen2Config(
    vocab_size=257, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
    intermediate_size=72, tie_word_embeddings=False, rms_norm_eps=1e-6,
    rope_parameters={"rope_type": "default", "rope_theta": 1e4}, **COMMON,
)  # fmt: skip
QWEN3 = Qwen3Config(
    vocab_size=257, hidden_size=40, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    head_dim=64, intermediate_size=37, tie_word_embeddings=True, rms_norm_eps=1e-6,
    rope_parameters={"rope_type": "default", "rope_theta": 1e6}, **COMMON,
)  # fmt: skip
LLAMA = LlamaConfig(
    vocab_size=33, hidden_size=48, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
    head_dim=80, intermediate_size=72, tie_word_embeddings=False, rms_norm_eps=1e-5,
    rope_parameters={"rope_type": "default", "rope_theta": 1e4}, **COMMON,
)  # fmt: skip
# Of the eight frequencies one is kept, one blended and six are divided.
LLAMA_SCALED = LlamaConfig(
    vocab_size=257, hidden_size=72, num_hidden_layers=2, num_attention_heads=9, num_key_value_heads=3,
    head_dim=16, intermediate_size=37, tie_word_embeddings=True, rms_norm_eps=1e-5,
    rope_parameters={
        "rope_type": "llama3", "rope_theta": 1e4, "factor": 4.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
    }, **COMMON,
)  # fmt: skip

TRAINING = dict(
    steps=20, micro_batches=2, sequences=2, sequence=24, warmup=5, max_lr=1e-3, min_lr=1e-4,
    beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1,
)  # fmt: skip


def build(config):
    """A model of this shape with the formula's weights."""
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(torch.from_numpy(weight(name, tuple(p.shape))))
    return model.eval()


def cross_entropy(logits, targets, reduction):
    return torch.nn.functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]), targets.reshape(-1), ignore_index=-1, reduction=reduction
    )


def next_tokens(tokens):
    """Targets of whole sequences: the next token, none at the end."""
    end = torch.full_like(tokens[:, :1], -1)
    return torch.cat([tokens[:, 1:], end], dim=1)


def parameters(model):
    """Name, shape and a hash of each parameter's little-endian float32 bytes, in the model's order."""
    return [
        {
            "name": name,
            "shape": list(p.shape),
            "first": float(p.detach().flatten()[0]),
            "sha256": hashlib.sha256(p.detach().numpy().astype("<f4").tobytes()).hexdigest(),
        }
        for name, p in model.named_parameters()
    ]


def gradients(model):
    return {"grad/" + name: p.grad.detach().numpy().copy() for name, p in model.named_parameters()}


def forward_case(config, batch, sequence):
    """Logits, loss and gradients of whole sequences, each one document."""
    model = build(config)
    tokens = torch.from_numpy(ids("ids", (batch, sequence), config.vocab_size))
    targets = next_tokens(tokens)
    logits = model(input_ids=tokens, use_cache=False).logits
    loss = cross_entropy(logits, targets, "mean")
    loss.backward()
    case = {
        "batch": batch,
        "sequence": sequence,
        "ids": tokens.flatten().tolist(),
        "targets": targets.flatten().tolist(),
        "start": [0] * (batch * sequence),
        "loss": loss.item(),
        "parameters": parameters(model),
        "greedy": greedy(model, config.vocab_size),
    }
    return case, {"logits": logits.detach().numpy(), **gradients(model)}


def packed_case(config, rows):
    """Several documents a sequence. The model sees each document alone, from position 0."""
    model = build(config)
    sequence = sum(rows[0][0])
    every_id, every_target, starts, logits, total = [], [], [], [], 0.0
    for r, (lengths, goes_on) in enumerate(rows):
        # One id more than the row: the next pack's first token, target of a document that goes on.
        stream = torch.from_numpy(ids(f"ids.{r}", (sequence + 1,), config.vocab_size))
        start = 0
        for d, length in enumerate(lengths):
            document = stream[start : start + length][None]
            targets = next_tokens(document)
            if goes_on and d == len(lengths) - 1:
                targets[0, -1] = stream[sequence]
            out = model(input_ids=document, use_cache=False).logits
            total = total + cross_entropy(out, targets, "sum")
            logits.append(out[0])
            every_id += document[0].tolist()
            every_target += targets[0].tolist()
            starts += [start] * length
            start += length
    loss = total / sum(t >= 0 for t in every_target)
    loss.backward()
    case = {
        "batch": len(rows),
        "sequence": sequence,
        "ids": every_id,
        "targets": every_target,
        "start": starts,
        "loss": loss.item(),
        "parameters": parameters(model),
    }
    stacked = torch.cat(logits).detach().numpy().reshape(len(rows), sequence, -1)
    return case, {"logits": stacked, **gradients(model)}


def greedy(model, vocab, new=24, least_gap=1e-2):
    """Greedy continuations of prompts of several lengths.

    Of sixty prompts of a length it takes the most varied continuation among those whose best two
    logits are never closer than least_gap, so that rounding cannot change a token.
    """
    found = []
    for length in (1, 4, 11, 30):
        best = None
        for k in range(60):
            prompt = torch.from_numpy(ids(f"prompt.{length}.{k}", (1, length), vocab))
            with torch.no_grad():
                out = model.generate(
                    prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=new,
                    use_cache=True, pad_token_id=0,
                )  # fmt: skip
                # Without the cache: the same tokens must come out, and the gaps.
                top = model(input_ids=out[:, :-1], use_cache=False).logits[0, length - 1 :].topk(2)
            assert out.shape[1] == length + new
            gap = (top.values[:, 0] - top.values[:, 1]).min().item()
            if gap < least_gap:
                continue
            assert top.indices[:, 0].tolist() == out[0, length:].tolist()
            variety = len(set(out[0, length:].tolist()))
            if best is None or variety > best[0]:
                best = (variety, prompt, out, gap)
        assert best is not None, f"no prompt of length {length} has a gap above {least_gap}"
        _, prompt, out, gap = best
        found.append(
            {"prompt": prompt[0].tolist(), "tokens": out[0, length:].tolist(), "least_gap": gap}
        )
    return found


def learning_rate(step, t):
    """Linear warm-up, then a cosine to min_lr at the end. Steps count from 0."""
    if step < t["warmup"]:
        return t["max_lr"] * (step + 1) / t["warmup"]
    done = (step - t["warmup"]) / (t["steps"] - t["warmup"])
    return t["min_lr"] + (t["max_lr"] - t["min_lr"]) * 0.5 * (1 + math.cos(math.pi * done))


def training_case(config, t):
    """AdamW steps, two micro-batches each; the loss is a mean over the step's valid tokens.

    The first (5·step + 7·row) mod 19 targets of a row are masked, so that micro-batches differ in
    their number of valid tokens and a mean of means would be wrong.
    """
    model = build(config).train()
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    plain = [p for p in model.parameters() if p.ndim < 2]
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": t["weight_decay"]}, {"params": plain, "weight_decay": 0.0}],
        lr=0.0, betas=(t["beta1"], t["beta2"]), eps=t["eps"], foreach=False, fused=False,
    )  # fmt: skip
    steps = []
    rows = t["micro_batches"] * t["sequences"]
    for step in range(t["steps"]):
        # The same four sequences come back every fourth step: the model has something to learn.
        tokens = torch.from_numpy(ids(f"step.{step % 4}", (rows, t["sequence"]), config.vocab_size))
        targets = next_tokens(tokens)
        for row in range(rows):
            targets[row, : (5 * step + 7 * row) % 19] = -1
        valid = int((targets >= 0).sum())
        optimizer.zero_grad()
        loss = 0.0
        for m in range(t["micro_batches"]):
            part = slice(m * t["sequences"], (m + 1) * t["sequences"])
            logits = model(input_ids=tokens[part], use_cache=False).logits
            share = cross_entropy(logits, targets[part], "sum") / valid
            share.backward()
            loss += share.item()
        lr = learning_rate(step, t)
        for group in optimizer.param_groups:
            group["lr"] = lr
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), t["clip"]).item()
        optimizer.step()
        steps.append(
            {
                "ids": tokens.flatten().tolist(),
                "targets": targets.flatten().tolist(),
                "valid": valid,
                "lr": lr,
                "loss": loss,
                "norm": norm,
            }
        )
    clipped = sum(s["norm"] > t["clip"] for s in steps)
    print("   losses", *(f"{s['loss']:.3f}" for s in steps))
    print("   norms ", *(f"{s['norm']:.3f}" for s in steps))
    assert 0 < clipped < t["steps"], f"clipping must bite in some steps, not in {clipped} of {t['steps']}"
    final = [
        {
            "name": name,
            "norm": p.detach().double().norm().item(),
            "moved": (p.detach().double() - before[name].double()).norm().item(),
        }
        for name, p in model.named_parameters()
    ]
    return {**t, "step": steps, "final": final}


def write(root, name, config, case, tensors):
    directory = os.path.join(root, name)
    os.makedirs(directory, exist_ok=True)
    config.save_pretrained(directory)
    save_file(tensors, os.path.join(directory, "tensors.safetensors"))
    case = {"format": 1, "case": name, "versions": VERSIONS, **case}
    # One line a field keeps the file readable and a change reviewable.
    fields = [f"{json.dumps(k)}: {json.dumps(v, separators=(', ', ': '))}" for k, v in case.items()]
    with open(os.path.join(directory, "case.json"), "w") as f:
        f.write("{\n" + ",\n".join(fields) + "\n}\n")
    print(name, "loss", case["loss"])
    for g in case.get("greedy", []):
        print("   greedy", len(g["prompt"]), len(set(g["tokens"])), "gap %.3g" % g["least_gap"])


def main():
    root = sys.argv[1]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.logging.set_verbosity_error()

    case, tensors = forward_case(QWEN2_TIED, batch=2, sequence=13)
    case["training"] = training_case(QWEN2_TIED, {**TRAINING, "clip": 5.2})
    write(root, "qwen2-tied", QWEN2_TIED, case, tensors)

    write(root, "qwen2-untied", QWEN2_UNTIED, *forward_case(QWEN2_UNTIED, batch=2, sequence=23))

    case, tensors = forward_case(QWEN3, batch=2, sequence=17)
    case["training"] = training_case(QWEN3, {**TRAINING, "clip": 3.2})
    write(root, "qwen3", QWEN3, case, tensors)

    write(root, "llama", LLAMA, *forward_case(LLAMA, batch=2, sequence=40))
    write(root, "llama-scaled", LLAMA_SCALED, *forward_case(LLAMA_SCALED, batch=2, sequence=40))

    # Row 0 ends inside a document that goes on in the next pack; row 1 ends with its last document.
    rows = [([7, 13, 1, 19], True), ([1, 5, 30, 4], False)]
    write(root, "packed", LLAMA_SCALED, *packed_case(LLAMA_SCALED, rows))


if __name__ == "__main__":
    main()
