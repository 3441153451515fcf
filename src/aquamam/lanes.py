"""A Transformer encoder's pass for one image as one parallel loop in machine code: matrix products with packed weights, attention, norms.

Libraries split every product evenly among the threads and wait for the slowest; with the two hundred rows of one image that, packing, and
the steps between products take a third of the time. Here all threads stay in one region from the first layer to the last and take pieces
of work as they get done, and what follows a product (bias, GELU) is done while its result is in cache. What a piece computes does not
depend on who takes it: equal inputs give equal bits, whatever the number of threads.

numba compiles this and keeps the machine code on disk. LLVM does not find the loops of a matrix product by itself, so those that matter are
written as vectors of `LANES` numbers; addresses are whole numbers, sizes count floats. All in one file, since numba looks at no other to
see whether what it kept is still good.
"""

import inspect
import math
from typing import no_type_check

import numba
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_features = binding.get_host_cpu_features()
_avx2, _avx512 = (all(_features.get(f, False) for f in needed) for needed in (("avx2", "fma"), ("avx512f", "avx512vl")))
LANES = 16 if _avx512 else 8
AVAILABLE = _avx2
ROWS = 12 if _avx512 else 6  # of a tile: as many sums as the registers hold
COLUMNS = 2 * LANES  # of a tile, and of a panel of packed weights
DEPTH = 256  # terms of a sum at once: a panel's stay in the nearest cache, those of 200 rows in the next
GROUP = 4  # panels that are taken at once
UNROLL = 4  # terms; sums have a multiple of it
LINE = 64  # bytes of a cache line, and between counters
BYTES = 4  # of a float
ASIDE = (
    LINE // BYTES
)  # floats between rows: with widths that are powers of two, rows would fall on the same few places of a cache

F32, I32, I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
VECTOR, INTEGERS = ir.VectorType(F32, LANES), ir.VectorType(I32, LANES)

# What the kernel is told: whole numbers, then ADDRESSES for each layer.
HEAD = ("tokens", "dim", "heads", "hidden", "layers", "normed", "wide", "scratch", "scratch_floats", "counters", "x")
LAYER = (
    "norm1_weight", "norm1_bias", "qkv", "qkv_bias", "out", "out_bias",
    "norm2_weight", "norm2_bias", "linear1", "linear1_bias", "linear2", "linear2_bias", "keys", "values",
)  # fmt: skip
STAGES = 8  # of a layer, each with a counter of the work taken
(TOKENS, DIM, HEADS, HIDDEN, LAYERS, NORMED, WIDE, SCRATCH, SCRATCH_FLOATS, COUNTERS, X) = range(len(HEAD))
EPS = 1e-6  # of the norms


def padded(tokens: int) -> int:
    """Tokens as attention sees them: whole panels."""
    return -(-tokens // COLUMNS) * COLUMNS


def scratch_floats(tokens: int, size: int) -> int:
    """What one thread needs for one head of this size: keys, values, weights of all pairs, and sums."""
    wide = padded(tokens)
    return wide * 2 * size + tokens * (wide + ASIDE) + wide


# --- vectors ------------------------------------------------------------------------------------------------------------------------


def _splat(b, x):
    none = ir.Constant(VECTOR, ir.Undefined)
    return b.shuffle_vector(b.insert_element(none, x, I32(0)), none, ir.Constant(INTEGERS, [0] * LANES))


def _constant(value):
    return ir.Constant(VECTOR, [value] * LANES)


def _at(b, address, kind, floats=0):
    return b.inttoptr(b.add(address, I64(BYTES * floats)) if floats else address, kind.as_pointer())


def _load(b, address, floats=0, kind=VECTOR, align=BYTES):
    value = b.load(_at(b, address, kind, floats))
    value.align = align
    return value


def _store(b, value, address, floats=0):
    b.store(value, _at(b, address, value.type, floats)).align = BYTES


def _call(b, name, *values):
    """An operation of LLVM's on vectors."""
    kind = values[0].type
    full = f"llvm.{name}.v{LANES}f32"
    f = b.module.globals.get(full) or ir.Function(b.module, ir.FunctionType(kind, [kind] * len(values)), full)
    return b.call(f, values)


def _fma(b, x, y, z):
    return _call(b, "fma", x, y, z)


def _polynomial(b, x, coefficients):
    """Highest power first."""
    total = _constant(coefficients[0])
    for c in coefficients[1:]:
        total = _fma(b, total, x, _constant(c))
    return total


def _exp(b, x):
    """e^x to about 1e-7 of itself, for x up to 0: 2^n times a polynomial of what is left."""
    x = _call(b, "maxnum", x, _constant(-87.0))
    n = _call(b, "rint", b.fmul(x, _constant(math.log2(math.e))))
    r = _fma(b, n, _constant(-0.693359375), x)  # ln 2 in two parts, the first exact in few bits
    r = _fma(b, n, _constant(0.693359375 - math.log(2)), r)
    # r^2 p(r) + r + 1, least squares of the Taylor series over |r| < ln 2 / 2
    p = _polynomial(b, r, [1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5])
    y = b.fadd(_fma(b, b.fmul(r, r), p, r), _constant(1.0))
    power = b.shl(
        b.add(b.fptosi(n, INTEGERS), ir.Constant(INTEGERS, [127] * LANES)), ir.Constant(INTEGERS, [23] * LANES)
    )
    return b.fmul(y, b.bitcast(power, VECTOR))


def _gelu(b, x):
    """x Φ(x) = max(x, 0) - |x| erfc(|x| / √2) / 2, with erfc by Abramowitz and Stegun 7.1.26, to 1.5e-7."""
    size = _call(b, "fabs", x)
    z = b.fmul(size, _constant(math.sqrt(0.5)))
    t = b.fdiv(_constant(1.0), _fma(b, z, _constant(0.3275911), _constant(1.0)))
    p = _polynomial(b, t, [1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592])
    tail = b.fmul(b.fmul(b.fmul(p, t), _exp(b, b.fneg(b.fmul(z, z)))), b.fmul(size, _constant(0.5)))
    return b.fsub(_call(b, "maxnum", x, _constant(0.0)), tail)


def _across(b, vector, join):
    """One number of all lanes."""
    total = b.extract_element(vector, I32(0))
    for lane in range(1, LANES):
        total = join(total, b.extract_element(vector, I32(lane)))
    return total


def _largest(b, x, y):
    return b.select(b.fcmp_ordered(">", x, y), x, y)


def _below(b, count):
    """Which lanes have a place below `count`."""
    none = ir.Constant(INTEGERS, ir.Undefined)
    all_count = b.shuffle_vector(
        b.insert_element(none, b.trunc(count, I32), I32(0)), none, ir.Constant(INTEGERS, [0] * LANES)
    )
    return b.icmp_signed("<", ir.Constant(INTEGERS, list(range(LANES))), all_count)


def _each(b, count, start, body):
    """Loop over the vectors of `count` floats; `start` holds vectors that `body(i, address offset, *vectors)` replaces."""
    places = [cgutils.alloca_once_value(b, v) for v in start]
    vectors = b.sdiv(b.add(count, I64(LANES - 1)), I64(LANES))
    with cgutils.for_range(b, vectors) as loop:
        now = body(loop.index, b.mul(loop.index, I64(BYTES * LANES)), *(b.load(p) for p in places))
        for place, value in zip(places, now or ()):
            b.store(value, place)
    return [b.load(p) for p in places]


def _routine(*kinds, returns=types.void):
    """Make `write(b, *addresses and sizes)` a function for compiled code."""

    def decorate(write):
        def typed(context, *arguments):
            def emit(context, builder, signature, values):
                result = write(builder, *values)
                return context.get_dummy_value() if result is None else result

            return returns(*kinds), emit

        named = [inspect.Parameter(f"a{i}", inspect.Parameter.POSITIONAL_OR_KEYWORD) for i in range(len(kinds))]
        typed.__name__ = write.__name__
        typed.__signature__ = inspect.Signature([named[0].replace(name="context"), *named])  # type: ignore[attr-defined]
        return intrinsic(typed)

    return decorate


INT = types.intp


def _tile(b, rows, a, a_stride, panel, c, c_stride, depth, add):
    """c = a b, or c += a b: so many rows of a times a panel."""
    at_a, at_c = ([first] for first in (a, c))
    for _ in range(rows - 1):
        at_a.append(b.add(at_a[-1], b.mul(a_stride, I64(BYTES))))
        at_c.append(b.add(at_c[-1], b.mul(c_stride, I64(BYTES))))
    before, loop, done = b.block, b.append_basic_block(), b.append_basic_block()
    b.branch(loop)
    b.position_at_end(loop)
    i = b.phi(I64)
    i.add_incoming(I64(0), before)
    sums = [[b.phi(VECTOR) for _ in range(2)] for _ in range(rows)]
    now = [list(pair) for pair in sums]
    at_panel, shift = b.add(panel, b.mul(i, I64(BYTES * COLUMNS))), b.mul(i, I64(BYTES))
    for u in range(UNROLL):
        weights = [_load(b, at_panel, COLUMNS * u + LANES * j, align=BYTES * LANES) for j in range(2)]
        for r in range(rows):
            x = _splat(b, _load(b, b.add(at_a[r], shift), u, F32))
            now[r] = [_fma(b, x, w, total) for w, total in zip(weights, now[r])]
    following = b.add(i, I64(UNROLL))
    i.add_incoming(following, loop)
    for r in range(rows):
        for j in range(2):
            sums[r][j].add_incoming(_constant(0.0), before)
            sums[r][j].add_incoming(now[r][j], loop)
    b.cbranch(b.icmp_signed("<", following, depth), loop, done)
    b.position_at_end(done)
    with b.if_else(b.icmp_signed("!=", add, I64(0))) as (then, otherwise):
        for branch, adding in ((then, True), (otherwise, False)):
            with branch:
                for r in range(rows):
                    for j in range(2):
                        total = b.fadd(now[r][j], _load(b, at_c[r], LANES * j)) if adding else now[r][j]
                        _store(b, total, at_c[r], LANES * j)


@_routine(*[INT] * 8)
def tile(b, rows, *rest):
    """`_tile` for 1 to `ROWS` rows."""
    after = b.append_basic_block()
    choice = b.switch(rows, after)
    for count in range(1, ROWS + 1):
        case = b.append_basic_block()
        choice.add_case(I64(count), case)
        b.position_at_end(case)
        _tile(b, count, *rest)
        b.branch(after)
    b.position_at_end(after)


@_routine(INT, INT, INT)
def plus(b, row, bias, count):
    """row += bias"""
    _each(
        b, count, [], lambda i, o: _store(b, b.fadd(_load(b, b.add(row, o)), _load(b, b.add(bias, o))), b.add(row, o))
    )


@_routine(INT, INT, INT)
def plus_gelu(b, row, bias, count):
    """row = gelu(row + bias)"""
    _each(
        b, count, [],
        lambda i, o: _store(b, _gelu(b, b.fadd(_load(b, b.add(row, o)), _load(b, b.add(bias, o)))), b.add(row, o)),
    )  # fmt: skip


@_routine(INT, INT, INT, INT, INT)
def norm(b, x, y, weight, bias, count):
    """y = (x - mean) / deviation * weight + bias"""
    size = b.sitofp(count, F32)
    (total,) = _each(b, count, [_constant(0.0)], lambda i, o, s: [b.fadd(s, _load(b, b.add(x, o)))])
    mean = _splat(b, b.fdiv(_across(b, total, b.fadd), size))

    def square(i, o, s):
        d = b.fsub(_load(b, b.add(x, o)), mean)
        return [_fma(b, d, d, s)]

    (total,) = _each(b, count, [_constant(0.0)], square)
    variance = _splat(b, b.fadd(b.fdiv(_across(b, total, b.fadd), size), ir.Constant(F32, EPS)))
    factor = b.fdiv(_constant(1.0), _call(b, "sqrt", variance))

    def write(i, o):
        d = b.fmul(b.fsub(_load(b, b.add(x, o)), mean), factor)
        _store(b, _fma(b, d, _load(b, b.add(weight, o)), _load(b, b.add(bias, o))), b.add(y, o))

    _each(b, count, [], write)


@_routine(INT, INT, INT, types.float32, returns=types.float32)
def exp_row(b, row, count, wide, scale):
    """row = exp(scale (row - its largest)) in its first `count` places and 0 up to `wide`; returns the sum."""
    none = _constant(-1e30)

    def inside(i, o):
        there = _below(b, b.sub(count, b.mul(i, I64(LANES))))
        return there, b.select(there, _load(b, b.add(row, o)), none)

    (top,) = _each(b, count, [none], lambda i, o, m: [_call(b, "maxnum", m, inside(i, o)[1])])
    top, factor = _splat(b, _across(b, top, lambda x, y: _largest(b, x, y))), _splat(b, scale)

    def write(i, o, s):
        there, x = inside(i, o)
        p = b.select(there, _exp(b, b.fmul(b.fsub(x, top), factor)), _constant(0.0))
        _store(b, p, b.add(row, o))
        return [b.fadd(s, p)]

    (total,) = _each(b, wide, [_constant(0.0)], write)
    return _across(b, total, b.fadd)


@_routine(INT, INT, INT)
def copy(b, source, to, count):
    """Of whole vectors."""
    _each(b, count, [], lambda i, o: _store(b, _load(b, b.add(source, o)), b.add(to, o)))


@_routine(INT, INT)
def clear(b, row, count):
    """row = 0"""
    _each(b, count, [], lambda i, o: _store(b, _constant(0.0), b.add(row, o)))


@_routine(INT, INT, types.float32)
def scale_row(b, row, count, factor):
    """row *= factor"""
    by = _splat(b, factor)
    _each(b, count, [], lambda i, o: _store(b, b.fmul(_load(b, b.add(row, o)), by), b.add(row, o)))


@_routine(INT, returns=INT)
def take(b, counter):
    """What the counter was; it is one more now, for all threads."""
    return b.atomic_rmw("add", b.inttoptr(counter, I64.as_pointer()), I64(1), "monotonic")


@_routine(INT)
def fetch(b, address):
    """Ask for a line of memory that will be read soon."""
    byte = ir.IntType(8).as_pointer()
    name = "llvm.prefetch.p0"
    kind = ir.FunctionType(ir.VoidType(), [byte, I32, I32, I32])
    f = b.module.globals.get(name) or ir.Function(b.module, kind, name)
    b.call(f, [b.inttoptr(address, byte), I32(0), I32(2), I32(1)])


@_routine(INT, returns=types.float32)
def get(b, address):
    return _load(b, address, 0, F32)


@_routine(INT, types.float32)
def put(b, address, value):
    _store(b, value, address)


# --- loops --------------------------------------------------------------------------------------------------------------------------


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
                at = y + BYTES * (row * y_stride + COLUMNS * p)
                tile(
                    min(ROWS, last - row),
                    x + BYTES * (row * x_stride + k),
                    x_stride,
                    here,
                    at,
                    y_stride,
                    terms,
                    add + k,
                )


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
        norm1, norm1_bias, qkv, qkv_bias, out, out_bias = (
            told[at],
            told[at + 1],
            told[at + 2],
            told[at + 3],
            told[at + 4],
            told[at + 5],
        )
        norm2, norm2_bias, up, up_bias, down, down_bias = (
            told[at + 6],
            told[at + 7],
            told[at + 8],
            told[at + 9],
            told[at + 10],
            told[at + 11],
        )
        keys, values = told[at + 12], told[at + 13]
        # in the last layer only [START], the last token, is read afterwards: the others have keys and values, no more
        first = tokens - 1 if layer == layers - 1 else 0
        _norms(counter, x, y, y_stride, norm1, norm1_bias, dim, 0, tokens)
        _wait()
        _linear(
            counter + LINE, y, y_stride, 0, tokens, dim, qkv, qkv_bias, wide, qkv_stride, queries, 3 * queries, 0, False
        )
        _linear(
            counter + 2 * LINE, y, y_stride, first, tokens, dim, qkv, qkv_bias, wide, qkv_stride, 0, queries, 0, False
        )
        _wait()
        _attention(counter + 3 * LINE, wide, qkv_stride, y, y_stride, keys, values, tokens, dim, heads, first, scratch)
        _wait()
        _linear(counter + 4 * LINE, y, y_stride, first, tokens, dim, out, out_bias, x, dim, 0, queries, 1, False)
        _wait()
        _norms(counter + 5 * LINE, x, y, y_stride, norm2, norm2_bias, dim, first, tokens)
        _wait()
        _linear(
            counter + 6 * LINE,
            y,
            y_stride,
            first,
            tokens,
            dim,
            up,
            up_bias,
            wide,
            hidden_stride,
            0,
            hidden // COLUMNS,
            0,
            True,
        )
        _wait()
        _linear(
            counter + 7 * LINE,
            wide,
            hidden_stride,
            first,
            tokens,
            hidden,
            down,
            down_bias,
            x,
            dim,
            0,
            queries,
            1,
            False,
        )
        _wait()
        counter += STAGES * LINE


def compiled():
    """`_encode` as the address of a function that takes the address of what it is told."""
    kind = types.void(types.CPointer(types.int64))
    try:
        return numba.cfunc(kind, cache=True)(_encode)
    except RuntimeError:
        return numba.cfunc(kind)(_encode)
