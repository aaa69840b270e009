"""Threads of one parallel loop that wait for each other inside it.

A decoder layer has ten steps that threads share. With few rows, beginning and ending a parallel loop takes longer than
many of these steps, and threads that wait between two loops fall asleep; here they meet at a counter.

A loop gives each of its iterations a thread of its own only if that many threads are available. So a crew first waits
for all of its threads: if one does not arrive, none begins, and the caller works alone.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from augury.kernels.digits_numba import STEADY
from augury.kernels.machine import ARM
from augury.kernels.vectors import I32, INDEX, at

# Places in a crew's numbers, each on cache lines of its own.
MET, PRESENT, VERDICT, PLACES = 0, 16, 32, 48
OPEN, TOGETHER, ALONE = 0, 1, 2
LOOKS = 300  # at a number before a thread yields its core between two looks
PATIENCE = 10_000_000  # nanoseconds to wait for a thread


def _number(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    """The address of one of a crew's numbers."""
    return at(builder, make_array(signature.args[0])(context, builder, value=args[0]).data, args[1])


@intrinsic
def _count(typing, numbers, place):
    """Atomically add one to a number, and return the result."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        one = ir.Constant(ir.IntType(64), 1)
        before = builder.atomic_rmw("add", _number(context, builder, signature, args), one, "acq_rel")
        return builder.add(before, one)

    return types.int64(numbers, INDEX), generate


@intrinsic
def _look(typing, numbers, place):
    """Load a number so that all that other threads wrote before they changed it is visible too."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_number(context, builder, signature, args), "acquire", 8)

    return types.int64(numbers, INDEX), generate


@intrinsic
def _decide(typing, numbers, place, verdict):
    """Store a verdict unless there is one already."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        none = ir.Constant(ir.IntType(64), OPEN)
        builder.cmpxchg(_number(context, builder, signature, args), none, args[2], "acq_rel", "acquire")
        return context.get_dummy_value()

    return types.void(numbers, INDEX, INDEX), generate


@intrinsic
def _pause(typing):
    """Tell the core that this thread is spinning."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        name, given = ("llvm.aarch64.hint", [I32(1)]) if ARM else ("llvm.x86.sse2.pause", [])
        kind = ir.FunctionType(ir.VoidType(), [value.type for value in given])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, name), given)
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _yield(typing):
    """Let another thread have the core, perhaps the one that is waited for; Windows lacks the call and spins."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if sys.platform != "win32":
            kind = ir.FunctionType(I32, [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_yield"), [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _nanoseconds(typing):
    """A monotonic clock; Windows lacks the call and reads the processor's cycle counter, whose rate is not known."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        long = ir.IntType(64)
        if sys.platform == "win32":
            kind = ir.FunctionType(long, [])
            return builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.readcyclecounter"), [])
        both = cgutils.alloca_once(builder, ir.ArrayType(long, 2))  # seconds and nanoseconds
        kind = ir.FunctionType(I32, [I32, both.type])
        clock = cgutils.get_or_insert_function(builder.module, kind, "clock_gettime")
        builder.call(clock, [I32(time.CLOCK_MONOTONIC), both])
        seconds, rest = (builder.extract_value(builder.load(both), n) for n in (0, 1))
        return builder.add(builder.mul(seconds, long(1_000_000_000)), rest)

    return types.int64(), generate


@njit(**STEADY)
def new_crew():
    """A crew's numbers; made here because a parallel function would fill them in a parallel loop of its own."""
    crew = np.empty(PLACES, np.int64)
    for place in range(PLACES):
        crew[place] = 0
    return crew


@njit(**STEADY)
def meet(crew, threads, met):
    """Wait until all threads are here; `met` is what the previous call returned, 0 at first."""
    if threads > 1:
        _count(crew, MET)
        looks = 0
        while _look(crew, MET) < met + threads:
            looks += 1
            if looks < LOOKS:
                _pause()
            else:
                _yield()
    return met + threads


@njit(**STEADY)
def all_here(crew, threads):
    """Whether every thread has arrived; all of them get the same answer."""
    if _count(crew, PRESENT) == threads:
        _decide(crew, VERDICT, TOGETHER)
    looks, until = 0, _nanoseconds() + PATIENCE
    while _look(crew, VERDICT) == OPEN:
        looks += 1
        if looks < LOOKS:
            _pause()
        elif _nanoseconds() < until:
            _yield()
        else:
            _decide(crew, VERDICT, ALONE)
    return _look(crew, VERDICT) == TOGETHER


@njit(**STEADY)
def left_alone(crew):
    """Whether a thread did not arrive, so that none of the work was done."""
    return _look(crew, VERDICT) == ALONE
