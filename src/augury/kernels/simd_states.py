"""The vector loops of a recurrence: one walk over a block of a state's columns updates it and "asks" it for a row.

A block is `keys` lines of WIDTH columns that lie one after the other, so a row's sums stay in registers while the block
stays in the first-level cache. To ask a state for a row is to sum it against the row's key and query; the walk that
makes a state can also ask it for the row after.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from augury.kernels.vectors import F32, INDEX, LANES, ZERO, at, const, fma, load, loop, pointers, splat, store

WIDTH = LANES  # columns of a block
TOGETHER = 4  # lines a turn: their keys and queries are loaded as one vector
_QUARTET = ir.VectorType(F32, TOGETHER)


def _make_walk(updates: bool, asks: bool, delta: bool) -> Any:
    """A walk that updates the state with one row, asks it for the row after, or both."""

    @intrinsic
    def walk(typing, source, s, dest, d, keys, key, k, decay, write, w, query, q, after, sums, p):
        """dest = decay * source + key[k ..] (x) write[w ..]; of that, sums[p ..] against key[after ..] and, one block
        further, against query[q ..]. Without an update dest is not written to; without the delta rule only queries
        are summed."""
        where = (INDEX, INDEX)
        signature = types.void(
            source, INDEX, dest, *where, key, INDEX, types.float32, write, INDEX, query, *where, sums, INDEX
        )

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = pointers(context, builder, signature, args)
            state, into, zero = pointer(0, 1), pointer(2, 3), const(args[1], 0)
            given, following, asked, out = pointer(5, 6), pointer(5, 12), pointer(10, 11), pointer(13, 14)
            fade, written = splat(builder, args[7]), load(builder, pointer(8, 9), zero) if updates else None

            def line(i: Any, carried: list[Any], factors: list[Any]) -> list[Any]:
                place = builder.mul(i, const(i, WIDTH))
                x = load(builder, state, place)
                if updates:
                    x = fma(builder, factors[0], written, builder.fmul(fade, x))
                    store(builder, x, at(builder, into, place))
                return [fma(builder, f, x, total) for f, total in zip(factors[updates:], carried, strict=True)]

            needed = ([given] if updates else []) + ([following] if asks and delta else []) + ([asked] if asks else [])
            totals = _by_lines(builder, args[4], needed, [ZERO] * (asks + (asks and delta)), line)
            for number, total in enumerate(totals):
                place = number if delta else 1
                store(builder, total, at(builder, out, const(zero, place * WIDTH)))
            return context.get_dummy_value()

        return signature, generate

    return walk


def _by_lines(builder: Any, count: Any, factors: list[Any], begun: list[Any], line: Any) -> list[Any]:
    """Emit a loop over lines, each with its own element of every array of factors; four a turn while there are four."""
    whole = builder.and_(count, const(count, -TOGETHER))

    def four(i: Any, carried: list[Any]) -> list[Any]:
        loaded = []
        for pointer in factors:
            vector = builder.load(builder.bitcast(at(builder, pointer, i), _QUARTET.as_pointer()))
            vector.align = 4
            loaded.append(vector)
        for lane in range(TOGETHER):
            own = [_spread(builder, vector, lane) for vector in loaded]
            carried = line(builder.add(i, const(i, lane)), carried, own)
        return carried

    def one(i: Any, carried: list[Any]) -> list[Any]:
        return line(i, carried, [splat(builder, builder.load(at(builder, pointer, i))) for pointer in factors])

    begun = loop(builder, const(count, 0), whole, 1, begun, four, step=TOGETHER)
    return loop(builder, whole, count, 1, begun, one, step=1)


def _spread(builder: Any, vector: Any, lane: int) -> Any:
    """One element of a vector in all lanes."""
    chosen = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [lane] * LANES)
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), chosen)


def _make_end(delta: bool) -> Any:
    """Compute what a row writes to the state and its output, after the state before it was asked."""

    @intrinsic
    def end(typing, sums, p, value, v, decay, rate, met, write, w, out, o):
        """write = rate * (value - decay * asked by key), or value; out = decay * asked by query + met * write."""
        number = types.float32
        signature = types.void(sums, INDEX, value, INDEX, number, number, number, write, INDEX, out, INDEX)

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = pointers(context, builder, signature, args)
            asked, zero, fade = pointer(0, 1), const(args[1], 0), splat(builder, args[4])
            written = load(builder, pointer(2, 3), zero)
            if delta:
                found = builder.fmul(fade, load(builder, asked, zero))
                written = builder.fmul(builder.fsub(written, found), splat(builder, args[5]))
            store(builder, written, pointer(7, 8))
            found = builder.fmul(fade, load(builder, asked, const(zero, WIDTH)))
            store(builder, fma(builder, splat(builder, args[6]), written, found), pointer(9, 10))
            return context.get_dummy_value()

        return signature, generate

    return end


end_delta, end_plain = _make_end(True), _make_end(False)
ask_delta, ask_plain = _make_walk(False, True, True), _make_walk(False, True, False)
step_delta, step_plain = _make_walk(True, True, True), _make_walk(True, True, False)
update_state = _make_walk(True, False, False)
