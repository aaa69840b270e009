"""Four vector loops that numba cannot be talked into writing itself.

LLVM's vectoriser either guards such loops with alias checks that cost as much as the loop (an attention head has only
64 elements) or turns them to gathers. Here the vectors are explicit; a machine with narrower registers splits them.
Every loop fixes its own order of additions, so a result does not depend on what surrounds the call.

Arguments are flat: an array and the index of its first element. Lengths are multiples of LANES.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

LANES = 16
UNROLL = 4
PREFETCH_GROUPS = 1  # weights are fetched one group of four lines ahead: bf16 at one row went from 17 to 11 ms a pass

_F32 = ir.FloatType()
_I8 = ir.IntType(8)
_I32 = ir.IntType(32)
_VECTOR = ir.VectorType(_F32, LANES)
_ZERO = ir.Constant(_VECTOR, [0.0] * LANES)
_index = types.intp
_Body = Callable[[Any, list[Any]], list[Any]]


@intrinsic
def dot4(typing, query, q, keys, k0, k1, k2, k3, count, scores, s):
    """scores[s + t] = sum of query[q + i] * keys[kt + i] over i < count, for t in 0..3."""
    signature = types.void(query, _index, keys, _index, _index, _index, _index, _index, scores, _index)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _pointers(context, builder, signature, args)
        left, right = pointer(0, 1), [pointer(2, i) for i in (3, 4, 5, 6)]

        def body(i: Any, sums: list[Any]) -> list[Any]:
            shared = _load(builder, left, i)
            return [_fma(builder, shared, _load(builder, r, i), total) for r, total in zip(right, sums, strict=True)]

        sums = _strip(builder, args[7], [_ZERO] * 4, body)
        _store(builder, _four_sums(builder, sums), pointer(8, 9))
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def axpy4(typing, out, o, weights, w, values, v0, v1, v2, v3, count):
    """out[o + i] += sum over t in 0..3 of weights[w + t] * values[vt + i], for i < count."""
    signature = types.void(out, _index, weights, _index, values, _index, _index, _index, _index, _index)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _pointers(context, builder, signature, args)
        target, factors = pointer(0, 1), pointer(2, 3)
        scales = [_splat(builder, builder.load(_at(builder, factors, _const(args[9], t)))) for t in range(4)]
        lines = [pointer(4, i) for i in (5, 6, 7, 8)]

        def body(i: Any, _: list[Any]) -> list[Any]:
            total = _load(builder, target, i)
            for scale, line in zip(scales, lines, strict=True):
                total = _fma(builder, scale, _load(builder, line, i), total)
            _store(builder, total, _at(builder, target, i))
            return []

        _strip(builder, args[9], [], body)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def largest(typing, scores, s, count, floor):
    """The largest of floor and scores[s : s + count]."""
    signature = types.float32(scores, _index, _index, types.float32)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        line = _pointers(context, builder, signature, args)(0, 1)

        def body(i: Any, tops: list[Any]) -> list[Any]:
            return [_larger(builder, tops[0], _load(builder, line, i))]

        (tops,) = _strip(builder, args[2], [_splat(builder, args[3])], body)
        while tops.type.count > 1:
            tops = _larger(builder, *_halves(builder, tops))
        return builder.extract_element(tops, _I32(0))

    return signature, generate


def _make_tile(rows: int) -> Any:
    """A product of `rows` lines of x with four lines of a weight matrix."""

    @intrinsic
    def tile(typing, x, x0, weight, w0, count, out, o0, stride):
        """out[o0 + r*stride + t] = x line r . weight line t; lines are `count` apart; weight float32 or bf16 bits."""
        signature = types.void(x, _index, weight, _index, _index, out, _index, _index)

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = _pointers(context, builder, signature, args)
            count, stride = args[4], args[7]

            def line(start: Any, number: int, apart: Any) -> Any:
                return _at(builder, start, builder.mul(apart, _const(count, number)))

            xs = [line(pointer(0, 1), r, count) for r in range(rows)]
            weights = [line(pointer(2, 3), t, count) for t in range(4)]
            ahead = builder.mul(count, _const(count, 4 * PREFETCH_GROUPS))

            def body(i: Any, sums: list[Any]) -> list[Any]:
                for w in weights:
                    _prefetch(builder, _at(builder, _at(builder, w, i), ahead))
                columns = [_load(builder, w, i) for w in weights]
                shared = [_load(builder, x, i) for x in xs]
                return [_fma(builder, shared[n // 4], columns[n % 4], total) for n, total in enumerate(sums)]

            sums = _strip(builder, count, [_ZERO] * (4 * rows), body)
            for r in range(rows):
                total = _four_sums(builder, sums[4 * r : 4 * r + 4])
                _store(builder, total, line(pointer(5, 6), r, stride))
            return context.get_dummy_value()

        return signature, generate

    return tile


tile1, tile2, tile4 = _make_tile(1), _make_tile(2), _make_tile(4)


@intrinsic
def unpack(typing, codes, c, scales, s, blocks, out, o):
    """out[o + i] = scale * code + shift for `blocks` blocks of 32; uint8 codes are pairs of halves, int8 whole."""
    signature = types.void(codes, _index, scales, _index, _index, out, _index)
    halved = not codes.dtype.signed

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _pointers(context, builder, signature, args)
        source, pairs, target, blocks = pointer(0, 1), pointer(2, 3), pointer(5, 6), args[4]
        width = LANES if halved else 2 * LANES  # bytes of codes in a block

        def scaled(codes: Any, factors: list[Any], place: Any) -> None:
            _store(builder, _fma(builder, codes, *factors), _at(builder, target, place))

        def body(i: Any, _: Sequence[Any]) -> list[Any]:
            block = builder.udiv(i, _const(i, LANES))
            first = builder.mul(block, _const(i, 2))
            factors = [
                _splat(builder, builder.load(_at(builder, pairs, builder.add(first, _const(i, t))))) for t in (0, 1)
            ]
            start, place = builder.mul(block, _const(i, width)), builder.mul(block, _const(i, 2 * LANES))
            for part in (0, 1):
                codes = _codes(
                    builder, source, builder.add(start, _const(i, 0 if halved else part * LANES)), part, halved
                )
                scaled(codes, factors, builder.add(place, _const(i, part * LANES)))
            return []

        _strip(builder, builder.mul(blocks, _const(blocks, LANES)), [], body)
        return context.get_dummy_value()

    return signature, generate


def _codes(builder: Any, source: Any, start: Any, part: int, halved: bool) -> Any:
    """LANES codes as floats: the low or high halves of 16 bytes, or 16 signed bytes."""
    address = builder.bitcast(_at(builder, source, start), ir.VectorType(_I8, LANES).as_pointer())
    raw = builder.load(address)
    raw.align = 1
    if not halved:
        return builder.sitofp(builder.sext(raw, ir.VectorType(_I32, LANES)), _VECTOR)
    wide = builder.zext(raw, ir.VectorType(_I32, LANES))
    half = builder.lshr(wide, _mask(*[4] * LANES)) if part else builder.and_(wide, _mask(*[15] * LANES))
    return builder.uitofp(half, _VECTOR)


def _strip(builder: Any, count: Any, carried: list[Any], body: _Body) -> list[Any]:
    """Emit `for i in range(0, count, LANES): carried = body(i, carried)`, four rounds at a time while there are four.

    A head of 64 elements is then straight code, without a chain of waits on the sums.
    """
    whole = builder.and_(count, _const(count, -UNROLL * LANES))
    carried = _loop(builder, _const(count, 0), whole, UNROLL, carried, body)
    return _loop(builder, whole, count, 1, carried, body)


def _loop(builder: Any, first: Any, last: Any, rounds: int, carried: list[Any], body: _Body) -> list[Any]:
    """Emit a loop that runs body `rounds` times a turn."""
    before = builder.block
    test, turn, after = (builder.append_basic_block(f"strip.{part}") for part in ("test", "turn", "end"))
    builder.branch(test)
    builder.position_at_end(test)
    i = builder.phi(first.type)
    phis = [builder.phi(start.type) for start in carried]
    builder.cbranch(builder.icmp_signed("<", i, last), turn, after)
    builder.position_at_end(turn)
    results = phis
    for number in range(rounds):
        results = body(builder.add(i, _const(i, number * LANES)), results)
    i.add_incoming(first, before)
    i.add_incoming(builder.add(i, _const(i, rounds * LANES)), turn)
    for phi, start, result in zip(phis, carried, results, strict=True):
        phi.add_incoming(start, before)
        phi.add_incoming(result, turn)
    builder.branch(test)
    builder.position_at_end(after)
    return phis


def _four_sums(builder: Any, vectors: Sequence[Any]) -> Any:
    """The four lane sums of four vectors, as one vector; each sum is added in the same order."""
    shuffle, add = builder.shuffle_vector, builder.fadd
    a, b, c, d = (_fold(builder, v) for v in vectors)
    low = add(shuffle(a, b, _mask(0, 4, 1, 5)), shuffle(a, b, _mask(2, 6, 3, 7)))
    high = add(shuffle(c, d, _mask(0, 4, 1, 5)), shuffle(c, d, _mask(2, 6, 3, 7)))
    return add(shuffle(low, high, _mask(0, 1, 4, 5)), shuffle(low, high, _mask(2, 3, 6, 7)))


def _fold(builder: Any, vector: Any) -> Any:
    """Add halves until four lanes are left."""
    while vector.type.count > 4:
        vector = builder.fadd(*_halves(builder, vector))
    return vector


def _halves(builder: Any, vector: Any) -> tuple[Any, Any]:
    half, nothing = vector.type.count // 2, ir.Constant(vector.type, ir.Undefined)
    low, high = _mask(*range(half)), _mask(*range(half, 2 * half))
    return builder.shuffle_vector(vector, nothing, low), builder.shuffle_vector(vector, nothing, high)


def _larger(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def _pointers(context: Any, builder: Any, signature: Any, args: Any) -> Callable[[int, int], Any]:
    """Give a function from (number of an array argument, number of its index argument) to an element's address."""

    def pointer(array: int, index: int) -> Any:
        data = make_array(signature.args[array])(context, builder, value=args[array]).data
        return _at(builder, data, args[index])

    return pointer


def _load(builder: Any, pointer: Any, i: Any) -> Any:
    """LANES floats from pointer[i]; 16-bit elements are the upper halves of floats (bf16)."""
    element = pointer.type.pointee
    address = builder.bitcast(_at(builder, pointer, i), ir.VectorType(element, LANES).as_pointer())
    vector = builder.load(address)
    vector.align = 4 if element == _F32 else 2
    if element == _F32:
        return vector
    wide = builder.zext(vector, ir.VectorType(_I32, LANES))
    return builder.bitcast(builder.shl(wide, _mask(*[16] * LANES)), _VECTOR)


def _store(builder: Any, vector: Any, pointer: Any) -> None:
    builder.store(vector, builder.bitcast(pointer, vector.type.as_pointer())).align = 4


def _fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{LANES}f32"), [a, b, c])


def _prefetch(builder: Any, pointer: Any) -> None:
    """Ask for the cache line of a float that will be read; past the end of an array this does nothing."""
    kind = ir.FunctionType(ir.VoidType(), [_I8.as_pointer(), _I32, _I32, _I32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(function, [builder.bitcast(pointer, _I8.as_pointer()), _I32(0), _I32(3), _I32(1)])


def _splat(builder: Any, scalar: Any) -> Any:
    nothing = ir.Constant(_VECTOR, ir.Undefined)
    return builder.shuffle_vector(builder.insert_element(nothing, scalar, _I32(0)), nothing, _mask(*[0] * LANES))


def _at(builder: Any, pointer: Any, index: Any) -> Any:
    return builder.gep(pointer, [index], inbounds=True)


def _const(like: Any, number: int) -> Any:
    return ir.Constant(like.type, number)


def _mask(*lanes: int) -> Any:
    return ir.Constant(ir.VectorType(_I32, len(lanes)), list(lanes))
