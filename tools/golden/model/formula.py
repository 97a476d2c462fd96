"""The formula that weights and token ids come from, so that only results need storing.

internal/golden holds the same formula in Go. A test there compares the two bit for bit.

    h = FNV-1a-64(name)
    z = splitmix64's finaliser of the state h + (i+1)·0x9E3779B97F4A7C15      (i: flat index)
    u = (z >> 11) · 2^-53                                                     (in [0, 1))
    weight = float32((2u - 1)·a + c), computed in float64
    id     = z mod vocabulary

FNV-1a: Fowler, Noll and Vo. splitmix64: Steele, Lea and Flood, "Fast splittable pseudorandom
number generators", 2014.
"""

import numpy as np

GOLDEN_RATIO = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1


def words(name, n):
    """The first n values z of the stream called name, as uint64."""
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = ((h ^ byte) * 0x100000001B3) & MASK
    z = np.arange(1, n + 1, dtype=np.uint64) * np.uint64(GOLDEN_RATIO) + np.uint64(h)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def spread(name, shape):
    """The a and c of a parameter, by its kind: norm, bias, embedding, or a matrix [out, in]."""
    if name.endswith("norm.weight"):
        return 0.2, 1.0
    if name.endswith(".bias"):
        return 0.2, 0.0
    if name.endswith("embed_tokens.weight"):
        return 0.2, 0.0
    return 1.5 / float(np.sqrt(np.float64(shape[1]))), 0.0


def weight(name, shape):
    """The parameter called name (Hugging Face's name), as float32 of the given shape."""
    a, c = spread(name, shape)
    z = words(name, int(np.prod(shape)))
    u = (z >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return ((2.0 * u - 1.0) * a + c).astype(np.float32).reshape(shape)


def ids(name, shape, vocab):
    """Token ids of the stream called name, as int64 of the given shape."""
    z = words(name, int(np.prod(shape)))
    return (z % np.uint64(vocab)).astype(np.int64).reshape(shape)
