"""Integer dot products of packed weights with activations in fixed point.

An activation is a whole number of at most 23 bits times the scale of its block, and is kept as signed bytes: three
digits to the base 256, or one where speed matters more than precision. Products of codes and digits are summed as
integers, 32 weights of a line at a time, so that no order of additions can change them; a block's sum is then rounded
once to float32, scaled and added to its line's. Each lane of a vector is another line (see tiles.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from augury.kernels.machine import ARM, LINES, X86_DOTS
from augury.kernels.simd_dots import BYTES, INTS, RAISE, call, codes_to_multiply, dot_groups, raised
from augury.kernels.tiles import GROUP, code_bytes, factors_of, record_bytes
from augury.kernels.unpack import BLOCK
from augury.kernels.vectors import F32, I8, I32, INDEX, at, const, loop_of, mask, pointers, prefetch

GROUPS = BLOCK // GROUP
FETCH_AHEAD, CACHE_LINE = not ARM, 64  # on ARM it has not been measured
BASE_BITS = 8
# Numbers kept with a block of digits: its scale, the sum of its activations, and where codes are raised, what that adds
# to the sums of each digit over the halves of a block (as integers).
SUMS, HALF = 2, BLOCK // 2
FACTORS = SUMS + (2 * 3 if X86_DOTS else 0)
TOP = {1: 127, 3: 127 << 16}  # the largest activation of a block in units, by digits; rounded up, it still has no more
LITTLE_BITS = 0x0D800000  # 2**-100: a block with nothing larger counts as zeros, whose inverse would overflow
INFINITY_BITS = 0x7F800000

FLOATS = ir.VectorType(F32, LINES)
BLOCK_FLOATS = ir.VectorType(F32, BLOCK)
BLOCK_INTS = ir.VectorType(I32, BLOCK)
BLOCK_BYTES = ir.VectorType(I8, BLOCK)
FOUR_GROUPS = ir.VectorType(I32, 4)


def _make_tile(rows: int, halves: int) -> Any:
    """Some rows of activations times a tile of weights, or a half of one."""

    @intrinsic
    def product(typing, tiles, tile, half, numbers, factors, row, blocks, places, out, o, apart):
        """out[o + r*apart + i] = row r . line i of the tile, from the half on; tiles of uint8 hold pairs of codes."""
        indexes = (INDEX, INDEX)
        signature = types.void(tiles, *indexes, numbers, factors, *indexes, places, out, *indexes)
        halved, digits = not tiles.dtype.signed, places.count
        size = record_bytes(halved)

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            _, tile, half, _, _, row, blocks, _, _, _, apart = args

            def starts(array: int, first: Any, count: int, size: int) -> list[Any]:
                data = make_array(signature.args[array])(context, builder, value=args[array]).data
                numbers = [builder.add(first, const(first, n)) for n in range(count)]
                return [at(builder, data, builder.mul(n, builder.mul(blocks, const(blocks, size)))) for n in numbers]

            (weights,) = starts(0, tile, 1, size)
            lines, scaled = starts(3, row, rows, digits * BLOCK), starts(4, row, rows, FACTORS)

            def body(block: Any, totals: Sequence[Any]) -> list[Any]:
                def part(start: Any, size: int) -> Any:
                    return _own_register(builder, at(builder, start, builder.mul(block, const(block, size))))

                done, record = list(totals), part(weights, size)
                for h in range(halves):
                    codes, floats = _half_at(builder, record, builder.add(half, const(half, h)), halved)
                    if FETCH_AHEAD:
                        _fetch(builder, builder.mul(blocks, const(blocks, size)), (codes, floats), halved)
                    groups, scales, shift = _read_half(builder, codes, floats, halved)
                    for r in range(rows):
                        beside = part(scaled[r], FACTORS)
                        step, whole = (_splat(builder, beside, i) for i in (0, 1))
                        begun = at(builder, beside, I32(SUMS)) if raised(halved) else None
                        sums = _block_sums(builder, groups, part(lines[r], digits * BLOCK), begun, digits, len(scales))
                        place = r * halves + h
                        for scale, exact in zip(scales, sums, strict=True):
                            done[place] = _fma(builder, exact, builder.fmul(scale, step), done[place])
                        done[place] = _fma(builder, shift, whole, done[place])
                return done

            none = ir.Constant(FLOATS, [0.0] * LINES)
            totals = loop_of(builder, blocks, [none] * (rows * halves), body)
            _store(builder, totals, pointers(context, builder, signature, args)(8, 9), apart, halves)
            return context.get_dummy_value()

        return signature, generate

    return product


half4, half3, tile2, tile1 = _make_tile(4, 1), _make_tile(3, 1), _make_tile(2, 2), _make_tile(1, 2)


def _own_register(builder: Any, pointer: Any) -> Any:
    """The same address, of which x86 compilers no longer know that it is a sum.

    They would add its parts in every instruction that reads from there, and an instruction that multiplies what it
    reads at the sum of two registers takes two of the four places that a cycle has.
    """
    if ARM:
        return pointer
    kind = ir.FunctionType(pointer.type, [pointer.type])
    return builder.call(ir.InlineAsm(kind, "", "=r,0", side_effect=False), [pointer])


def _store(builder: Any, totals: Sequence[Any], first: Any, apart: Any, halves: int) -> None:
    """Store the sums of the rows, `apart` floats from each other."""
    for n, total in enumerate(totals):
        line = at(builder, first, builder.mul(apart, const(apart, n // halves)))
        target = at(builder, line, const(apart, n % halves * LINES))
        builder.store(total, builder.bitcast(target, FLOATS.as_pointer())).align = 4


def _half_at(builder: Any, record: Any, half: Any, halved: bool) -> tuple[Any, Any]:
    """Where the codes of one half of a tile's block begin, and where its scales and shifts."""
    size, bytes_of_floats = code_bytes(halved), 4 * factors_of(halved) * LINES
    place = builder.add(builder.mul(half, const(half, bytes_of_floats)), const(half, 2 * size))
    return at(builder, record, builder.mul(half, const(half, size))), at(builder, record, place)


def _fetch(builder: Any, ahead: Any, parts: tuple[Any, Any], halved: bool) -> None:
    """Ask for the same half of the same block, so many bytes ahead: one tile.

    A core that multiplies four rows does not look far enough ahead by itself, so that reading and multiplying took
    turns; like this they take little more than the longer of the two.
    """
    for start, size in zip(parts, (code_bytes(halved), 4 * factors_of(halved) * LINES), strict=True):
        for byte in range(0, size, CACHE_LINE):
            prefetch(builder, at(builder, start, builder.add(ahead, const(ahead, byte))))


def _read_half(builder: Any, codes: Any, floats: Any, halved: bool) -> tuple[list[Any], list[Any], Any]:
    """Codes, scales and shift of one half of a tile's block."""
    *scales, shift = _vectors(builder, floats, FLOATS, factors_of(halved))
    return codes_to_multiply(builder, _code_groups(builder, codes, halved), halved), scales, shift


@intrinsic
def split(typing, x, block, numbers, factors, places):
    """Put a block of x in `numbers`, highest digits first, and its scale and its sum in `factors`.

    A block with an infinity or NaN gets the scale NaN, one of next to nothing the scale 0.
    """
    signature, digits = types.void(x, INDEX, numbers, factors, places), places.count

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        def part(array: int, size: int) -> Any:
            data = make_array(signature.args[array])(context, builder, value=args[array]).data
            return at(builder, data, builder.mul(args[1], const(args[1], size)))

        values = _vectors(builder, part(0, BLOCK), BLOCK_FLOATS, 1)[0]
        step, inverse = _step(builder, values, TOP[digits])
        scaled = builder.fmul(values, _splatted(builder, inverse, BLOCK_FLOATS))
        rest = builder.fptosi(call(builder, "llvm.rint.v32f32", BLOCK_FLOATS, scaled), BLOCK_INTS)
        whole = builder.sitofp(call(builder, "llvm.vector.reduce.add.v32i32", I32, rest), F32)
        for digit in reversed(range(digits)):
            low = builder.trunc(rest, BLOCK_BYTES)
            target = at(builder, part(2, digits * BLOCK), I32(digit * BLOCK))
            builder.store(low, builder.bitcast(target, BLOCK_BYTES.as_pointer())).align = 1
            if X86_DOTS:
                _store_raised(builder, low, at(builder, part(3, FACTORS), I32(SUMS + 2 * digit)))
            rest = builder.ashr(builder.sub(rest, builder.sext(low, BLOCK_INTS)), mask(*[BASE_BITS] * BLOCK))
        for n, value in enumerate((step, builder.fmul(whole, step))):
            builder.store(value, at(builder, part(3, FACTORS), I32(n)))
        return context.get_dummy_value()

    return signature, generate


def _store_raised(builder: Any, low: Any, target: Any) -> None:
    """Store, negated, what raising the codes adds to the sums of a digit over either half of a block."""
    words = builder.sext(low, BLOCK_INTS)
    for half in range(2):
        lanes = builder.shuffle_vector(words, words, mask(*range(half * HALF, half * HALF + HALF)))
        total = call(builder, f"llvm.vector.reduce.add.v{HALF}i32", I32, lanes)
        builder.store(
            builder.mul(total, I32(-RAISE)), builder.bitcast(at(builder, target, I32(half)), I32.as_pointer())
        )


def _step(builder: Any, values: Any, top: int) -> tuple[Any, Any]:
    """The scale of a block (what one unit is worth), and its inverse."""
    bits = builder.and_(builder.bitcast(values, BLOCK_INTS), mask(*[0x7FFFFFFF] * BLOCK))
    largest = call(builder, "llvm.vector.reduce.umax.v32i32", I32, bits)
    magnitude = builder.bitcast(largest, F32)
    step = builder.fmul(magnitude, F32(1 / top))
    inverse = builder.fdiv(F32(float(top)), magnitude)
    little = builder.icmp_unsigned("<", largest, I32(LITTLE_BITS))
    endless = builder.icmp_unsigned(">=", largest, I32(INFINITY_BITS))
    step = builder.select(endless, F32(float("nan")), builder.select(little, F32(0.0), step))
    return step, builder.select(builder.or_(endless, little), F32(0.0), inverse)


def _vectors(builder: Any, address: Any, kind: Any, count: int) -> list[Any]:
    """Vectors that lie one after another."""
    start, found = builder.bitcast(address, kind.as_pointer()), []
    for n in range(count):
        vector = builder.load(builder.gep(start, [I32(n)], inbounds=True))
        vector.align = 4
        found.append(vector)
    return found


def _code_groups(builder: Any, address: Any, halved: bool) -> list[Any]:
    """The codes of a block, four of each line in a vector."""
    if not halved:
        return _vectors(builder, address, BYTES, GROUPS)
    raw = _vectors(builder, address, BYTES, GROUPS // 2)
    low, four = (ir.Constant(BYTES, [number] * BYTES.count) for number in (15, 4))
    return [builder.and_(vector, low) for vector in raw] + [builder.lshr(vector, four) for vector in raw]


def _block_sums(builder: Any, groups: Sequence[Any], address: Any, begun: Any, digits: int, parts: int) -> list[Any]:
    """The sums of codes times activations over the parts of a block, each rounded once to float32.

    `begun` is where the sums of 8-bit codes begin, on machines that raise them.
    """
    activations = [_activations(builder, at(builder, address, I32(digit * BLOCK))) for digit in range(digits)]
    # Few sums, each a chain of products, would wait for one another; three digits are enough of them.
    chains = 2 if X86_DOTS and digits == 1 else 1
    found, each = [], GROUPS // parts
    for part in range(parts):
        sums, chosen = [], slice(part * each, (part + 1) * each)
        for digit, four in enumerate(activations):
            start = _ints(0)
            if begun is not None:
                kept = builder.bitcast(at(builder, begun, I32(2 * digit + part)), I32.as_pointer())
                start = _splatted(builder, builder.load(kept), INTS)
            sums.append(dot_groups(builder, groups[chosen], four[chosen], start, parts == 1, chains))
        found.append(_rounded(builder, sums, carries=parts > 1))
    return found


def _activations(builder: Any, address: Any) -> list[Any]:
    """A digit of a block's activations, four at a time, each four repeated for every line."""
    if X86_DOTS:  # read one by one: an instruction reads and spreads what it multiplies
        fours = builder.bitcast(address, I32.as_pointer())
        return [builder.bitcast(_splatted(builder, _unaligned(builder, fours, n), INTS), BYTES) for n in range(GROUPS)]
    four = _vectors(builder, address, FOUR_GROUPS, GROUPS // 4)
    lanes = [(four[n // 4], mask(*[n % 4] * LINES)) for n in range(GROUPS)]
    return [builder.bitcast(builder.shuffle_vector(vector, vector, lane), BYTES) for vector, lane in lanes]


def _unaligned(builder: Any, address: Any, n: int) -> Any:
    value = builder.load(at(builder, address, I32(n)))
    value.align = 4
    return value


def _rounded(builder: Any, sums: Sequence[Any], carries: bool) -> Any:
    """A number in digits as float32, rounded once; `carries` where two digits have more bits than a float32."""
    if len(sums) == 1:
        return builder.sitofp(sums[0], FLOATS)
    high, rest = sums[0], builder.add(builder.shl(sums[1], _ints(BASE_BITS)), sums[2])
    if carries:
        high = builder.add(high, builder.ashr(rest, _ints(2 * BASE_BITS)))
        rest = builder.and_(rest, _ints((1 << 2 * BASE_BITS) - 1))
    base = ir.Constant(FLOATS, [float(1 << 2 * BASE_BITS)] * LINES)
    return _fma(builder, builder.sitofp(high, FLOATS), base, builder.sitofp(rest, FLOATS))


def _ints(number: int) -> Any:
    return ir.Constant(INTS, [number] * LINES)


def _splat(builder: Any, pointer: Any, place: int) -> Any:
    return _splatted(builder, builder.load(at(builder, pointer, I32(place))), FLOATS)


def _splatted(builder: Any, scalar: Any, kind: Any) -> Any:
    nothing = ir.Constant(kind, ir.Undefined)
    return builder.shuffle_vector(builder.insert_element(nothing, scalar, I32(0)), nothing, mask(*[0] * kind.count))


def _fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    return call(builder, f"llvm.fma.v{LINES}f32", FLOATS, a, b, c)
