"""Encodes the hard strings and the repository's own text with a real tokenizer.json.

    real.py TOKENIZER_JSON OUTPUT

The output holds texts and ids, for the Go test TestIdsWithARealVocabulary.
"""

import json
import pathlib
import random
import sys

import tokenizers
from strings import strings

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]


def main():
    tokenizer, output = sys.argv[1:]
    t = tokenizers.Tokenizer.from_file(tokenizer)
    texts = strings()
    files = sorted(p for end in ("go", "c", "h", "py", "md", "txt") for p in REPOSITORY.rglob("*." + end))
    whole = [p.read_text(errors="strict") for p in files]
    random.Random(1).shuffle(whole)
    size = 0
    for text in whole:
        texts.append(text)
        size += len(text.encode())
        if size > 2_000_000:
            break
    json.dump(
        {"made_with": {"tokenizers": tokenizers.__version__}, "texts": texts, "ids": [t.encode(x).ids for x in texts]},
        open(output, "w"),
    )
    print(f"tokenizers {tokenizers.__version__}: {len(texts)} texts, {size} bytes of files, vocabulary of {t.get_vocab_size()}")


main()
