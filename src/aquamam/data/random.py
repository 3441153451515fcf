"""Random numbers by position: draw k of example i is a pure function of (seed, stream, i, k).

So an example does not depend on how many workers made its neighbours, and a stream is resumed by its position alone.
"""

import hashlib

import numpy as np
from jaxtyping import Float64, Int64, UInt64

_GAMMA = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio, the step of SplitMix64
Indices = Int64[np.ndarray, " n"]  # of examples


def mix64(x: UInt64[np.ndarray, "..."]) -> UInt64[np.ndarray, "..."]:
    """The finaliser of SplitMix64: a bijection of 64-bit words in which every input bit moves every output bit."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def words(seed: int, stream: str, indices: Indices, count: int, first: int = 0) -> UInt64[np.ndarray, "n count"]:
    """64-bit words number `first` to `first + count - 1` of each example in `indices`."""
    key = hashlib.blake2b(f"{seed}/{stream}".encode(), digest_size=8).digest()
    with np.errstate(over="ignore"):  # arithmetic is modulo 2**64
        i = mix64(np.frombuffer(key, np.uint64) + indices.astype(np.uint64) * _GAMMA)
        k = np.arange(first + 1, first + count + 1, dtype=np.uint64) * _GAMMA
        return mix64(i[:, None] + k)


def uniforms(seed: int, stream: str, indices: Indices, count: int, first: int = 0) -> Float64[np.ndarray, "n count"]:
    """Uniform numbers in [0, 1) with 53 random bits each."""
    return (words(seed, stream, indices, count, first) >> np.uint64(11)) * 2.0**-53


def haar(seed: int, stream: str, indices: Int64[np.ndarray, " n"]) -> Float64[np.ndarray, "n 4"]:
    """One uniformly random rotation for each example, as canonical xyzw quaternions (Marsaglia 1972).

    Only +, *, / and sqrt are used, which IEEE 754 rounds exactly: every machine draws the same bits.
    """
    q = np.empty((len(indices), 4))
    open_ = np.arange(len(indices))
    attempt = 0
    while len(open_):
        v = 2 * uniforms(seed, stream, indices[open_], 4, first=4 * attempt) - 1
        s, t = v[:, 0] ** 2 + v[:, 1] ** 2, v[:, 2] ** 2 + v[:, 3] ** 2
        good = (s < 1) & (t < 1) & (t > 0)
        v, s, t = v[good], s[good], t[good]
        v[:, 2:] *= np.sqrt((1 - s) / t)[:, None]
        q[open_[good]] = v
        open_ = open_[~good]
        attempt += 1
    return np.where(q[:, 3:] < 0, -q, q)
