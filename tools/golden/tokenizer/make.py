"""Writes the golden files of data/tokenizer/testdata with Hugging Face's tokenizers.

    python3 -m venv VENV && VENV/bin/pip install -r tools/golden/tokenizer/requirements.txt
    VENV/bin/python tools/golden/tokenizer/make.py

The script trains small tokenizers on testdata/corpus.txt, encodes the strings
of strings.py with them, and records what the library knows of characters.
trained.tokenizer.json is the exception: Go's trainer wrote it (go test -run
TestTheTrainedFile -update), and here it is loaded and used.
"""

import json
import pathlib
import random

import tokenizers
from strings import strings
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

OUT = pathlib.Path(__file__).resolve().parents[3] / "data" / "tokenizer" / "testdata"
QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
MADE_WITH = {"tokenizers": tokenizers.__version__, "script": "tools/golden/tokenizer/make.py"}


def dump(name, value):
    (OUT / name).write_text(json.dumps(value, ensure_ascii=True, separators=(",", ":")).replace('],[', '],\n[') + "\n")


def train(corpus, size, pre, normalizer=None, special=(), whole_alphabet=True):
    t = Tokenizer(models.BPE())
    if normalizer:
        t.normalizer = normalizer
    t.pre_tokenizer = pre
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(
        [corpus],
        trainers.BpeTrainer(
            vocab_size=size,
            min_frequency=2,
            special_tokens=list(special),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if whole_alphabet else [],
            show_progress=False,
        ),
    )
    return t


def split(regex):
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(regex), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


def small(t, **model):
    """The tokenizer's file without indentation, with fields of the model replaced."""
    d = json.loads(t.to_str())
    d["model"].update(model)
    return d


def qwen2(corpus):
    t = train(corpus, 1200, split(QWEN2), normalizers.NFC())
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    t.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    t.add_tokens([AddedToken(x, normalized=False) for x in ("<tool_call>", "</tool_call>")])
    t.add_tokens([AddedToken(x, normalized=True) for x in ("<|norm|>", "<|cafe\u0301|>")])
    return small(t)


def gpt2(corpus):
    t = train(corpus, 700, pre_tokenizers.ByteLevel(add_prefix_space=False))
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    t.add_special_tokens([AddedToken("<|endoftext|>", normalized=True, special=True)])
    d = small(t, continuing_subword_prefix="", end_of_word_suffix="")
    d["model"]["merges"] = [" ".join(m) for m in d["model"]["merges"]]  # the older spelling
    return d


def smollm2(corpus):
    """Special tokens first and in the model's vocabulary; some bytes are missing."""
    pre = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    return small(train(corpus, 600, pre, special=["<|endoftext|>", "<|im_start|>", "<|im_end|>"], whole_alphabet=False))


def llama3(corpus):
    t = train(corpus, 700, split(LLAMA3))
    t.post_processor = processors.Sequence([processors.ByteLevel(), processors.TemplateProcessing(single="$A", pair="$A $B:1", special_tokens=[])])
    d = small(t, ignore_merges=True)
    # Words that no merge leads to, so that ignore_merges shows.
    vocab = d["model"]["vocab"]
    for word in ("\u0120tokenizes", "hello", "1234", "\u00e9\u0142\u00a5\u00e5\u00a4\u0129"):
        vocab[word] = len(vocab)
    t = Tokenizer.from_str(json.dumps(d))
    t.add_special_tokens(["<|endoftext|>"])
    return small(t)


def runs(numbers):
    out = []
    for n in numbers:
        if out and out[-1][1] == n - 1:
            out[-1][1] = n
        else:
            out.append([n, n])
    return out


def characters():
    every = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]

    def matching(regex):
        removed = pre_tokenizers.Split(Regex(regex), "removed")
        found = []
        for lo in range(0, len(every), 4096):
            part = every[lo : lo + 4096]
            kept = set("".join(p for p, _ in removed.pre_tokenize_str("".join(map(chr, part)))))
            found += [c for c in part if chr(c) not in kept]
        return runs(found)

    digits = pre_tokenizers.Digits(True)
    return {
        "made_with": MADE_WITH,
        "letters": matching(r"\p{L}"),
        "numbers": matching(r"\p{N}"),
        "blanks": matching(r"\s"),
        "digits": runs([c for c in every if len(digits.pre_tokenize_str(chr(c) + "xx")) == 2]),
    }


def compositions():
    """Pairs of a text and its normal form: single characters, marks out of order, random groups."""
    nfc = normalizers.NFC()
    texts = []
    marks = []
    for c in range(0x80, 0x30000):
        if 0xD800 <= c < 0xE000:
            continue
        if nfc.normalize_str(chr(c)) != chr(c):
            texts.append(chr(c))
        if nfc.normalize_str("x\u0345" + chr(c)) != "x\u0345" + chr(c):
            marks.append(chr(c))
    # All singletons, and the marks, go into a few long texts.
    texts = ["".join(texts[i : i + 50]) for i in range(0, len(texts), 50)]
    texts += ["x\u0345" + m for m in marks[::7]]
    texts += ["x\u0345\u07fd", "x\u0345\u0898\u0334", "x\u0345\u1ac1", "x\u0345\u0c3c", "\U00011935\U00011930", "e\u0301\U00011938e\u0301"]
    import unicodedata

    decomposed = [unicodedata.normalize("NFD", chr(c)) for c in [*range(0xC0, 0x2000), *range(0x3040, 0x3100), *range(0x11000, 0x11A00)] if unicodedata.normalize("NFD", chr(c)) != chr(c)]
    texts += ["".join(decomposed[i : i + 40]) for i in range(0, len(decomposed), 40)]
    rng = random.Random(9)
    base = list("aeqAEo ") + ["\u1100", "\u1161", "\u11a8", "\uac00", "\uac01", "\u0627", "\u0928", "\u304b", "\u1e9b", "\u0b47", "\u0dd9", "\u0dcf", "\u1025", "\u102e", "\u09c7", "\u09be", "\U000110a5", "\U000110ba"]
    some = ["\u0300", "\u0301", "\u0302", "\u0307", "\u0308", "\u0323", "\u0327", "\u0328", "\u0331", "\u0334", "\u0345", "\u0653", "\u093c", "\u3099", "\u0344", "\u07fd", "\u0f71", "\u0f72"]
    for _ in range(400):
        texts.append("".join(rng.choice(base) + "".join(rng.choice(some) for _ in range(rng.choice([0, 1, 1, 2, 3, 5]))) for _ in range(rng.randint(1, 4))))
    texts.append("a" + "\u0323\u0307" * 40)
    return {"made_with": MADE_WITH, "pairs": [[x, nfc.normalize_str(x)] for x in texts]}


def main():
    corpus = (OUT / "corpus.txt").read_text()
    files = {"qwen2": qwen2(corpus), "gpt2": gpt2(corpus), "smollm2": smollm2(corpus), "llama3": llama3(corpus)}
    for name, d in files.items():
        (OUT / f"{name}.tokenizer.json").write_text(json.dumps(d, ensure_ascii=False, separators=(",", ":")).replace('"added_tokens"', '\n"added_tokens"').replace('"model"', '\n"model"').replace('"merges"', '\n"merges"') + "\n")
    texts = strings()
    (OUT / "strings.json").write_text(json.dumps(texts, ensure_ascii=True, indent=0) + "\n")
    for name in [*files, "trained"]:
        path = OUT / f"{name}.tokenizer.json"
        if path.exists():
            t = Tokenizer.from_file(str(path))
            dump(f"{name}.ids.json", {"made_with": MADE_WITH, "vocab_size": t.get_vocab_size(), "ids": [t.encode(x).ids for x in texts]})
    dump("characters.json", characters())
    dump("compositions.json", compositions())
    learned = train(corpus, 1000, split(QWEN2), normalizers.NFC())
    dump("learned.json", {"made_with": MADE_WITH, "merges": json.loads(learned.to_str())["model"]["merges"]})


main()
