"""Loads directories that package checkpoint wrote, as a user of transformers would, and checks them.

    python -m venv VENV && VENV/bin/pip install -r ../model/requirements.txt
    GOFSDP_PYTHON=VENV/bin/python go test -run Transformers ./checkpoint    (from the repository's root)

The Go test writes the directories and calls this script:

    check.py GOLDEN weights CASE DIRECTORY     GOLDEN/CASE's weights, stored in whatever type
    check.py GOLDEN tokenizer FILE DIRECTORY   a tokenizer of our own, FILE being its tokenizer.json
    check.py GOLDEN carried SOURCE DIRECTORY   tokenizer and settings of SOURCE, carried along

as many of the three-word checks as there are, after one GOLDEN. It ends with the count of checks, or
with a traceback at the first that fails.
"""

import json
import os
import sys

import numpy as np
import tokenizers
import torch
import transformers
from safetensors import safe_open
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "model"))
from formula import weight  # noqa: E402

TEXTS = [
    "", "hello world", "Hello , world !  It's  25.000 \u20ac", "func main() {\n\tfmt.Println(\"\u00fcber\")\n}\n",
    "a\n\n\n  b\t\tc ", "\u4f60\u597d \U0001f44b\U0001f3fd e\u0301", "one<|endoftext|>two <|endoftext|>",
]  # fmt: skip


def stored(directory):
    """Every tensor of the files, by name, as safetensors' own reader has it."""
    tensors = {}
    for file in sorted(os.listdir(directory)):
        if file.endswith(".safetensors"):
            with safe_open(os.path.join(directory, file), "pt") as f:
                assert f.metadata() == {"format": "pt"}, f.metadata()
                for name in f.keys():
                    assert name not in tensors, f"{name} is in two files"
                    tensors[name] = f.get_tensor(name)
    return tensors


def bits(t):
    return t.contiguous().view(torch.int32 if t.dtype == torch.float32 else torch.int16)


def check_weights(golden, case, directory):
    with open(os.path.join(golden, case, "case.json")) as f:
        want = json.load(f)
    files = stored(directory)
    (dtype,) = {t.dtype for t in files.values()}
    expected = {p["name"]: torch.from_numpy(weight(p["name"], tuple(p["shape"]))).to(dtype) for p in want["parameters"]}
    assert files.keys() == expected.keys(), files.keys() ^ expected.keys()

    # No dtype is asked for: it must come from what we wrote.
    model, info = AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True, attn_implementation="eager")
    assert not any(info.values()), info
    parameters = dict(model.named_parameters())
    assert parameters.keys() == expected.keys(), parameters.keys() ^ expected.keys()
    for name, t in expected.items():
        assert torch.equal(bits(files[name]), bits(t)), f"{name}: other bits in the file"
        assert parameters[name].dtype == dtype, f"{name}: loaded as {parameters[name].dtype}"
        assert torch.equal(bits(parameters[name].detach()), bits(t)), f"{name}: other bits after loading"
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert tied == ("lm_head.weight" not in files) == model.config.tie_word_embeddings
    reference = transformers.AutoConfig.from_pretrained(os.path.join(golden, case)).to_dict()
    ours = model.config.to_dict()
    for key in ("dtype", "_name_or_path"):
        reference.pop(key, None), ours.pop(key, None)
    differ = {key: (reference.get(key), ours.get(key)) for key in reference.keys() | ours.keys()
              if reference.get(key) != ours.get(key)}  # fmt: skip
    differ.pop("architectures", None)  # the case's was saved without a model
    differ.pop("transformers_version", None)
    assert not differ, f"config.json differs from transformers' own: {differ}"
    if dtype != torch.float32:
        return f"{len(files)} tensors bit-equal, {dtype}"

    logits = np.concatenate([forward(model, row) for row in documents(want)])
    golden_logits = load_file(os.path.join(golden, case, "tensors.safetensors"))["logits"].reshape(logits.shape)
    off = np.abs(logits - golden_logits).max() / np.abs(golden_logits).max()
    targets = torch.tensor(want["targets"])
    loss = torch.nn.functional.cross_entropy(torch.from_numpy(logits), targets, ignore_index=-1).item()
    assert off <= 1e-5, f"logits are off by {off}"
    assert abs(loss - want["loss"]) <= 1e-5 * want["loss"], (loss, want["loss"])
    return f"{len(files)} tensors bit-equal, logits within {off:.1e}, loss within {abs(loss / want['loss'] - 1):.1e}"


def documents(case):
    """The ids of each document, in order: a sequence is cut where start changes."""
    n = case["sequence"]
    for row in range(case["batch"]):
        ids, start = (case[key][row * n : (row + 1) * n] for key in ("ids", "start"))
        cuts = sorted(set(start)) + [n]
        for begin, end in zip(cuts, cuts[1:]):
            yield ids[begin:end]


def forward(model, ids):
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].numpy()


def check_ids(tokenizer, file):
    """A tokenizer gives what Hugging Face's tokenizers library gives for a tokenizer.json."""
    reference = tokenizers.Tokenizer.from_file(file)
    for text in TEXTS:
        ids = tokenizer(text)["input_ids"]
        assert ids == reference.encode(text).ids, f"{text!r} becomes {ids}"
        back = tokenizer.decode(ids)
        assert back == reference.decode(ids, skip_special_tokens=False), f"{text!r} comes back as {back!r}"
    return reference


def check_tokenizer(golden, file, directory):
    tokenizer = AutoTokenizer.from_pretrained(directory)
    check_ids(PreTrainedTokenizerFast.from_pretrained(directory), file)
    reference = check_ids(tokenizer, file)
    end = reference.token_to_id("<|endoftext|>")
    config = transformers.AutoConfig.from_pretrained(directory)
    assert tokenizer.eos_token == "<|endoftext|>" and tokenizer.eos_token_id == end, tokenizer
    assert tokenizer.model_max_length == config.max_position_embeddings, tokenizer.model_max_length
    assert config.eos_token_id == end, config.eos_token_id
    assert GenerationConfig.from_pretrained(directory).eos_token_id == end
    # Generation stops there: the logit of that token alone is not zero, and its sign is the model's.
    model = AutoModelForCausalLM.from_pretrained(directory)
    ids = tokenizer("hello", return_tensors="pt")
    lengths = set()
    for sign in 1, -1:
        with torch.no_grad():
            head = model.get_output_embeddings().weight
            model.set_output_embeddings(torch.nn.Linear(head.shape[1], head.shape[0], bias=False))
            row = torch.from_numpy(weight("head", head.shape[1:] * 2))[0]
            model.get_output_embeddings().weight.zero_()[end] = sign * row
        out = model.generate(**ids, max_new_tokens=4, do_sample=False, pad_token_id=end)
        lengths.add(out.shape[1] - ids["input_ids"].shape[1])
    assert lengths == {1, 4}, lengths
    return f"{type(tokenizer).__name__} gives {len(TEXTS)} texts their ids; generation stops at the end of text"


def check_carried(golden, source, directory):
    ours, theirs = AutoTokenizer.from_pretrained(directory), AutoTokenizer.from_pretrained(source)
    check_ids(ours, os.path.join(source, "tokenizer.json"))
    assert type(ours) is type(theirs) and ours.special_tokens_map == theirs.special_tokens_map
    assert ours.model_max_length == theirs.model_max_length
    chat = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "world"}]
    spoken = ours.apply_chat_template(chat, tokenize=False)
    assert spoken == theirs.apply_chat_template(chat, tokenize=False) and "hello" in spoken
    a, b = (GenerationConfig.from_pretrained(d).to_dict() for d in (directory, source))
    assert a == b, (a, b)
    a, b = (transformers.AutoConfig.from_pretrained(d) for d in (directory, source))
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        assert getattr(a, key) == getattr(b, key), key
    # The same weights come out of both.
    a, b = (dict(AutoModelForCausalLM.from_pretrained(d).named_parameters()) for d in (directory, source))
    assert a.keys() == b.keys() and all(torch.equal(bits(a[n].detach()), bits(b[n].detach())) for n in a)
    return f"tokenizer, chat template, generation settings and {len(a)} tensors are the source's"


def main():
    golden, words = sys.argv[1], sys.argv[2:]
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    checks = {"weights": check_weights, "tokenizer": check_tokenizer, "carried": check_carried}
    assert words and len(words) % 3 == 0, __doc__
    for i in range(0, len(words), 3):
        kind, other, directory = words[i : i + 3]
        print(f"{os.path.basename(directory)}: {checks[kind](golden, other, directory)}")
    print(f"transformers {transformers.__version__}, torch {torch.__version__}: {len(words) // 3} directories checked")


if __name__ == "__main__":
    main()
