"""A Transformer encoder's pass for one image as one parallel loop in machine code: matrix products with packed weights, attention, norms.

Libraries split every product evenly among the threads and wait for the slowest; with the two hundred rows of one image that, packing, and
the steps between products take a third of the time. Here all threads stay in one region from the first layer to the last and take pieces
of work as they get done, and what follows a product (bias, GELU) is done while its result is in cache. What a piece computes does not
depend on who takes it: equal inputs give equal bits, whatever the number of threads.

numba compiles this and keeps the machine code on disk. It looks at this file alone to see whether what it kept is still good.
"""

import math
from typing import no_type_check

import numba
from numba import types

from aquamam.network.vectors import (
    BYTES,
    COLUMNS,
    ROWS,
    clear,
    copy,
    exp_row,
    fetch,
    get,
    norm,
    plus,
    plus_gelu,
    put,
    scale_row,
    take,
    tile,
)  # fmt: skip

VECTORS = "ec302bfaf228"  # what `vectors.py` was when this file changed last; a test compares it
DEPTH = 256  # terms of a sum at once: a panel's stay in the nearest cache, those of 200 rows in the next
GROUP = 4  # panels that are taken at once
LINE = 64  # bytes of a cache line, and between counters
# Floats between rows: with widths that are powers of two, rows would fall on the same few places of a cache.
ASIDE = LINE // BYTES

# What the kernel is told: whole numbers, then addresses for each layer.
HEAD = ("tokens", "dim", "heads", "hidden", "layers", "normed", "wide", "scratch", "scratch_floats", "counters", "x")
LAYER = (
    "norm1_weight", "norm1_bias", "qkv", "qkv_bias", "out", "out_bias",
    "norm2_weight", "norm2_bias", "linear1", "linear1_bias", "linear2", "linear2_bias", "keys", "values",
)  # fmt: skip
STAGES = 8  # of a layer, each with a counter of the work taken
(TOKENS, DIM, HEADS, HIDDEN, LAYERS, NORMED, WIDE, SCRATCH, SCRATCH_FLOATS, COUNTERS, X) = range(len(HEAD))


def padded(tokens: int) -> int:
    """Tokens as attention sees them: whole panels."""
    return -(-tokens // COLUMNS) * COLUMNS


def scratch_floats(tokens: int, size: int) -> int:
    """What one thread needs for one head of this size: keys, values, weights of all pairs, and sums."""
    wide = padded(tokens)
    return wide * 2 * size + tokens * (wide + ASIDE) + wide


def _compiled(function):
    """Kept on disk where numba finds a place for it."""
    try:
        return numba.njit(function, cache=True, error_model="numpy")
    except RuntimeError:
        return numba.njit(function, error_model="numpy")


@_compiled
@no_type_check
def _product(x, x_stride, first, last, depth, weights, y, y_stride, panel, panels, add):
    """Rows first to last of x times some panels of packed weights, into y or onto it.

    While one panel is used the next is on its way from memory.
    """
    fetches = DEPTH * COLUMNS * BYTES // LINE // ((last - first + ROWS - 1) // ROWS) + 1
    for k in range(0, depth, DEPTH):
        terms = min(DEPTH, depth - k)
        for p in range(panel, panels):
            here = weights + BYTES * COLUMNS * (p * depth + k)
            soon = here + BYTES * COLUMNS * depth
            if p + 1 == panels and k + DEPTH < depth:
                soon = weights + BYTES * COLUMNS * (panel * depth + k + DEPTH)
            for row in range(first, last, ROWS):
                for _ in range(fetches):
                    fetch(soon)
                    soon += LINE
                a, c = x + BYTES * (row * x_stride + k), y + BYTES * (row * y_stride + COLUMNS * p)
                tile(min(ROWS, last - row), a, x_stride, here, c, y_stride, terms, add + k)


@_compiled
@no_type_check
def _linear(counter, x, x_stride, first, last, depth, weights, bias, y, y_stride, panel, panels, add, gelu):
    """y = x W + b, gelu(x W + b) or y + x W + b: the share of this thread, some panels at a time."""
    while True:
        start = panel + GROUP * take(counter)
        if start >= panels:
            return
        stop = min(start + GROUP, panels)
        _product(x, x_stride, first, last, depth, weights, y, y_stride, start, stop, add)
        columns, shift = COLUMNS * (stop - start), BYTES * COLUMNS * start
        for row in range(first, last):
            at = y + BYTES * row * y_stride + shift
            if gelu:
                plus_gelu(at, bias + shift, columns)
            else:
                plus(at, bias + shift, columns)


@_compiled
@no_type_check
def _norms(counter, x, y, y_stride, weight, bias, dim, first, last):
    """y = norm(x), a tile of rows at a time."""
    while True:
        start = first + ROWS * take(counter)
        if start >= last:
            return
        for row in range(start, min(start + ROWS, last)):
            norm(x + BYTES * row * dim, y + BYTES * row * y_stride, weight, bias, dim)


@_compiled
@no_type_check
def _attention(counter, qkv, qkv_stride, y, y_stride, keys, values, tokens, dim, heads, first, scratch):
    """Queries from `first` on, a head at a time; keys and values are laid down head by head as well."""
    size, wide = dim // heads, (tokens + COLUMNS - 1) // COLUMNS * COLUMNS
    packed_keys, packed_values = scratch, scratch + BYTES * wide * size
    weights, w_stride = packed_values + BYTES * wide * size, wide + ASIDE
    sums = weights + BYTES * tokens * w_stride
    scale = numba.float32(1.0 / math.sqrt(size))
    while True:
        head = take(counter)
        if head >= heads:
            return
        for t in range(wide):
            key = qkv + BYTES * (t * qkv_stride + dim + head * size)
            value, place = key + BYTES * dim, BYTES * (head * tokens + t) * size
            if t < tokens:
                copy(key, keys + place, size)
                copy(value, values + place, size)
                key = keys + place
            for i in range(size):
                at = packed_keys + BYTES * ((t // COLUMNS * size + i) * COLUMNS + t % COLUMNS)
                put(at, get(key + BYTES * i) if t < tokens else numba.float32(0))
            for i in range(0, size, COLUMNS):
                at = packed_values + BYTES * (i * wide + t * COLUMNS)
                if t < tokens:
                    copy(value + BYTES * i, at, COLUMNS)
                else:
                    clear(at, COLUMNS)
        queries = qkv + BYTES * head * size
        _product(queries, qkv_stride, first, tokens, size, packed_keys, weights, w_stride, 0, wide // COLUMNS, 0)
        for row in range(first, tokens):
            put(sums + BYTES * row, exp_row(weights + BYTES * row * w_stride, tokens, wide, scale))
        out = y + BYTES * head * size
        _product(weights, w_stride, first, tokens, wide, packed_values, out, y_stride, 0, size // COLUMNS, 0)
        for row in range(first, tokens):
            scale_row(out + BYTES * row * y_stride, size, numba.float32(1) / get(sums + BYTES * row))


_wait = types.ExternalFunction("aquamam_wait", types.void())
_number = types.ExternalFunction("aquamam_thread_number", types.int32())


@no_type_check
def _encode(told):
    """All layers for the tokens of one image, by every thread of a parallel region at once."""
    tokens, dim, hidden, heads, layers = told[TOKENS], told[DIM], told[HIDDEN], told[HEADS], told[LAYERS]
    x, y, wide = told[X], told[NORMED], told[WIDE]
    y_stride, qkv_stride, hidden_stride = dim + ASIDE, 3 * dim + ASIDE, hidden + ASIDE
    scratch = told[SCRATCH] + BYTES * _number() * told[SCRATCH_FLOATS]
    counter = told[COUNTERS]
    queries = dim // COLUMNS
    for layer in range(layers):
        at = len(HEAD) + len(LAYER) * layer
        norm1, norm1_bias, qkv, qkv_bias, out, out_bias = told[at], told[at + 1], told[at + 2], told[at + 3], told[at + 4], told[at + 5]  # fmt: skip
        at += 6
        norm2, norm2_bias, up, up_bias, down, down_bias = told[at], told[at + 1], told[at + 2], told[at + 3], told[at + 4], told[at + 5]  # fmt: skip
        keys, values = told[at + 6], told[at + 7]
        # in the last layer only [START], the last token, is read afterwards: the others have keys and values, no more
        first = tokens - 1 if layer == layers - 1 else 0
        _norms(counter, x, y, y_stride, norm1, norm1_bias, dim, 0, tokens)
        _wait()
        _linear(counter + LINE, y, y_stride, 0, tokens, dim, qkv, qkv_bias, wide, qkv_stride, queries, 3 * queries, 0, False)  # fmt: skip
        _linear(counter + 2 * LINE, y, y_stride, first, tokens, dim, qkv, qkv_bias, wide, qkv_stride, 0, queries, 0, False)  # fmt: skip
        _wait()
        _attention(counter + 3 * LINE, wide, qkv_stride, y, y_stride, keys, values, tokens, dim, heads, first, scratch)
        _wait()
        _linear(counter + 4 * LINE, y, y_stride, first, tokens, dim, out, out_bias, x, dim, 0, queries, 1, False)
        _wait()
        _norms(counter + 5 * LINE, x, y, y_stride, norm2, norm2_bias, dim, first, tokens)
        _wait()
        _linear(counter + 6 * LINE, y, y_stride, first, tokens, dim, up, up_bias, wide, hidden_stride, 0, hidden // COLUMNS, 0, True)  # fmt: skip
        _wait()
        _linear(counter + 7 * LINE, wide, hidden_stride, first, tokens, hidden, down, down_bias, x, dim, 0, queries, 1, False)  # fmt: skip
        _wait()
        counter += STAGES * LINE


def compiled():
    """`_encode` as the address of a function that takes the address of what it is told."""
    kind = types.void(types.CPointer(types.int64))
    try:
        return numba.cfunc(kind, cache=True)(_encode)
    except RuntimeError:
        return numba.cfunc(kind)(_encode)
