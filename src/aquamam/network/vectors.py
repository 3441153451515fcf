"""Vectors for compiled loops: what LLVM does not find by itself in a matrix product, a softmax or a GELU, written as LLVM has it.

numba's loops call these routines. A vector has `LANES` numbers; addresses are whole numbers, sizes count floats.
"""

import inspect
import math

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
UNROLL = 4  # terms; sums have a multiple of it
BYTES = 4  # of a float
EPS = 1e-6  # of norms
INT = types.intp

F32, I32, I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
VECTOR, INTEGERS = ir.VectorType(F32, LANES), ir.VectorType(I32, LANES)


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
