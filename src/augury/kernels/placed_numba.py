"""Arrays like others at other addresses: how compiled code moves from one layer's matrices to the next one's."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from augury.kernels.vectors import INDEX, at


@intrinsic
def placed(typing, arrays, addresses, first):
    """A tuple of arrays of these types and shapes at addresses[first], addresses[first + 1], ...; they own nothing."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        lines = make_array(signature.args[1])(context, builder, value=args[1]).data
        moved = []
        for n, kind in enumerate(arrays):
            array = make_array(kind)(context, builder, value=builder.extract_value(args[0], n))
            place = builder.load(at(builder, lines, builder.add(args[2], ir.Constant(ir.IntType(64), n))))
            array.data = builder.inttoptr(place, array.data.type)
            array.meminfo = cgutils.get_null_value(array.meminfo.type)
            array.parent = cgutils.get_null_value(array.parent.type)
            moved.append(array._getvalue())
        return context.make_tuple(builder, arrays, moved)

    if not isinstance(arrays, types.BaseTuple):
        return None
    return arrays(arrays, addresses, INDEX), generate
