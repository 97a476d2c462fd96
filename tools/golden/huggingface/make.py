"""Makes checkpoint/testdata/transformers: directories as transformers' save_pretrained writes them.

    python -m venv VENV && VENV/bin/pip install -r ../model/requirements.txt
    VENV/bin/python make.py ../../../checkpoint/testdata/transformers

    fp32-sharded   a Llama with its own head and scaled RoPE in several files, with a tokenizer, a chat
                   template and generation settings, as a fine-tuned model comes from
    bf16           a tied Qwen3
    fp16           an untied Qwen2

Each has an expect.json besides: what transformers wrote, read with its own reader and widened to
float32, as shapes and hashes. Weights come from ../model/formula.py. The tokenizer is one of the
small ones that the tokenizer's tests have.
"""

import hashlib
import json
import os
import shutil
import sys

import torch
import transformers
from safetensors import safe_open
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    LlamaConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "model"))
from formula import weight  # noqa: E402

TOKENIZER = os.path.join(HERE, "../../../data/tokenizer/testdata/smollm2.tokenizer.json")

COMMON = dict(vocab_size=33, hidden_size=16, num_hidden_layers=2, intermediate_size=20, max_position_embeddings=64)
QWEN2 = Qwen2Config(num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=False, **COMMON)
QWEN3 = Qwen3Config(num_attention_heads=2, num_key_value_heads=1, head_dim=6, tie_word_embeddings=True, **COMMON)
LLAMA = LlamaConfig(
    num_attention_heads=2, num_key_value_heads=2, tie_word_embeddings=False, bos_token_id=3, eos_token_id=[1, 2],
    rope_parameters={
        "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
    }, **COMMON,
)  # fmt: skip


def save(directory, config, dtype, **how):
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(torch.from_numpy(weight(name, tuple(p.shape))))
    shutil.rmtree(directory, ignore_errors=True)
    model.to(dtype).save_pretrained(directory, **how)


def expect(directory):
    tensors = {}
    for file in sorted(os.listdir(directory)):
        if not file.endswith(".safetensors"):
            continue
        with safe_open(os.path.join(directory, file), "pt") as f:
            for name in f.keys():
                t = f.get_tensor(name)
                data = t.float().numpy().astype("<f4").tobytes()
                tensors[name] = {
                    "file": file,
                    "type": str(t.dtype).removeprefix("torch."),
                    "shape": list(t.shape),
                    "sha256": hashlib.sha256(data).hexdigest(),
                }
    text = {"versions": {"transformers": transformers.__version__, "torch": torch.__version__}, "tensors": tensors}
    with open(os.path.join(directory, "expect.json"), "w") as f:
        json.dump(text, f, indent=1, sort_keys=True)
        f.write("\n")


def main():
    root = sys.argv[1]
    transformers.logging.set_verbosity_error()

    sharded = os.path.join(root, "fp32-sharded")
    save(sharded, LLAMA, torch.float32, max_shard_size="6KB")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=TOKENIZER, eos_token="<|endoftext|>", pad_token="<|endoftext|>", model_max_length=64,
        chat_template="{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}",
    )  # fmt: skip
    tokenizer.save_pretrained(sharded)
    GenerationConfig(temperature=0.7, do_sample=True, eos_token_id=[1, 2]).save_pretrained(sharded)

    save(os.path.join(root, "bf16"), QWEN3, torch.bfloat16)
    save(os.path.join(root, "fp16"), QWEN2, torch.float16)
    for name in sorted(os.listdir(root)):
        expect(os.path.join(root, name))


if __name__ == "__main__":
    main()
