"""The GPU's part of `fused`, of Adam and of `renewal`.

All but the last two are passes over a matrix of activations in bfloat16, with sums in float32. A program holds a tile
of ROWS places and COLUMNS channels. `sums` has some rows of sums for every share of the rows, so that they can be added
up in a fixed order: the same input gives the same bits. `signs` has one bit for each place and channel, 32 places in a
number: whether ReLU let it pass. ROWS is 32, so that a tile has its own numbers.
"""

import triton
import triton.language as tl


@triton.jit
def place_beside(x, out, rows, columns, out_columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """x becomes neighbouring columns of a wider matrix; `out` is where they begin."""
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    there = (row < rows)[:, None]
    value = tl.load(x + row[:, None] * columns + column[None], mask=there)
    tl.store(out + row[:, None] * out_columns + column[None], value, mask=there)


@triton.jit
def column_sums(x, sums, rows, columns, share, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    square = tl.zeros((ROWS, COLUMNS), tl.float32)
    begin = tl.program_id(0) * share
    for start in range(begin, tl.minimum(begin + share, rows), ROWS):
        row = (start + tl.arange(0, ROWS)).to(tl.int64)
        there = (row < rows)[:, None]
        value = tl.load(x + row[:, None] * columns + column[None], mask=there, other=0.0).to(tl.float32)
        total += value
        square += value * value
    place = sums + tl.program_id(0) * 2 * columns + column
    tl.store(place, tl.sum(total, 0))
    tl.store(place + columns, tl.sum(square, 0))


@triton.jit
def add_up(sums, total, shares, columns, SHARES: tl.constexpr, COLUMNS: tl.constexpr):
    """The sums of all shares, (shares, columns), in a fixed order."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    found = tl.zeros((COLUMNS,), tl.float32)
    for start in range(0, shares, SHARES):
        share = start + tl.arange(0, SHARES)
        place = sums + share[:, None] * columns + column[None]
        found += tl.sum(tl.load(place, mask=(share < shares)[:, None], other=0.0), 0)
    tl.store(total + column, found)


@triton.jit
def statistics(
    sums,
    weight,
    bias,
    running_mean,
    running_var,
    mean,
    deviation,
    scale,
    shift,
    shares,
    rows,
    columns,
    momentum,
    epsilon,
    SHARES: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """From the sums of all shares to what a norm needs; the running statistics move."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((COLUMNS,), tl.float32)
    square = tl.zeros((COLUMNS,), tl.float32)
    for start in range(0, shares, SHARES):
        share = start + tl.arange(0, SHARES)
        there = (share < shares)[:, None]
        place = sums + share[:, None] * 2 * columns + column[None]
        total += tl.sum(tl.load(place, mask=there, other=0.0), 0)
        square += tl.sum(tl.load(place + columns, mask=there, other=0.0), 0)
    middle = total / rows
    spread = tl.maximum(square / rows - middle * middle, 0.0)
    inverse = 1.0 / tl.sqrt(spread + epsilon)
    factor = tl.load(weight + column) * inverse
    tl.store(mean + column, middle)
    tl.store(deviation + column, inverse)
    tl.store(scale + column, factor)
    tl.store(shift + column, tl.load(bias + column) - middle * factor)
    old_mean, old_var = tl.load(running_mean + column), tl.load(running_var + column)
    unbiased = spread * (rows / (rows - 1.0))  # as the running one is
    tl.store(running_mean + column, old_mean + (middle - old_mean) * momentum)
    tl.store(running_var + column, old_var + (unbiased - old_var) * momentum)


@triton.jit
def prepare(weight, bias, mean, var, deviation, scale, shift, epsilon, COLUMNS: tl.constexpr):
    """What a norm needs, by statistics from before."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inverse = 1.0 / tl.sqrt(tl.load(var + column) + epsilon)
    factor = tl.load(weight + column) * inverse
    tl.store(deviation + column, inverse)
    tl.store(scale + column, factor)
    tl.store(shift + column, tl.load(bias + column) - tl.load(mean + column) * factor)


@triton.jit
def apply(
    x,
    beside,
    out,
    signs,
    scale,
    shift,
    beside_scale,
    beside_shift,
    rows,
    columns,
    beside_columns,
    ADDS: tl.constexpr,
    NORMS: tl.constexpr,
    MARKS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    there = (row < rows)[:, None]
    place = row[:, None] * columns + column[None]
    value = tl.load(x + place, mask=there, other=0.0).to(tl.float32)
    value = value * tl.load(scale + column)[None] + tl.load(shift + column)[None]
    if ADDS:
        first = tl.program_id(1) * COLUMNS % beside_columns
        other = row[:, None] * beside_columns + (first + tl.arange(0, COLUMNS))[None]
        added = tl.load(beside + other, mask=there, other=0.0).to(tl.float32)
        if NORMS:
            added = added * tl.load(beside_scale + column)[None] + tl.load(beside_shift + column)[None]
        value += added
    tl.store(out + place, tl.maximum(value, 0.0).to(tl.bfloat16), mask=there)
    if MARKS:
        bit = tl.full((ROWS, 1), 1, tl.int32) << tl.arange(0, ROWS)[:, None]
        number = tl.sum(tl.where(value > 0, bit, 0), 0)
        tl.store(signs + tl.program_id(0).to(tl.int64) * columns + column, number)


@triton.jit
def _through_relu(gradient, value, signs, scale, shift, start, column, columns, ADDS: tl.constexpr, ROWS: tl.constexpr):
    """The gradient that ReLU lets back; without an addition its sign follows from the norm's input, `value`."""
    if ADDS:
        number = tl.load(signs + start // ROWS * columns + column)[None]
        return tl.where((number >> tl.arange(0, ROWS)[:, None]) & 1 != 0, gradient, 0.0)
    result = value * tl.load(scale + column)[None] + tl.load(shift + column)[None]
    return tl.where(result > 0, gradient, 0.0)


@triton.jit
def backward_sums(
    given,
    x,
    beside,
    signs,
    mean,
    deviation,
    scale,
    shift,
    beside_mean,
    beside_deviation,
    passed,
    sums,
    rows,
    columns,
    given_columns,
    share,
    ADDS: tl.constexpr,
    NORMS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Of the gradient; of it times the normalised x; and of it times what is normalised beside. With an addition, what
    ReLU lets back is kept in `passed`."""
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    middle, inverse = tl.load(mean + column)[None], tl.load(deviation + column)[None]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    along = tl.zeros((ROWS, COLUMNS), tl.float32)
    along_beside = tl.zeros((ROWS, COLUMNS), tl.float32)
    begin = tl.program_id(0) * share
    for start in range(begin, tl.minimum(begin + share, rows), ROWS):
        row = (start + tl.arange(0, ROWS)).to(tl.int64)
        there = (row < rows)[:, None]
        place = row[:, None] * columns + column[None]
        value = tl.load(x + place, mask=there, other=0.0).to(tl.float32)
        gradient = tl.load(given + row[:, None] * given_columns + column[None], mask=there, other=0.0).to(tl.float32)
        gradient = _through_relu(gradient, value, signs, scale, shift, start, column, columns, ADDS, ROWS)
        if ADDS:
            tl.store(passed + place, gradient.to(tl.bfloat16), mask=there)
        total += gradient
        along += gradient * (value - middle) * inverse
        if NORMS:
            other = tl.load(beside + place, mask=there, other=0.0).to(tl.float32) - tl.load(beside_mean + column)[None]
            along_beside += gradient * other * tl.load(beside_deviation + column)[None]
    place = sums + tl.program_id(0) * (3 if NORMS else 2) * columns + column
    tl.store(place, tl.sum(total, 0))
    tl.store(place + columns, tl.sum(along, 0))
    if NORMS:
        tl.store(place + 2 * columns, tl.sum(along_beside, 0))


@triton.jit
def backward_apply(
    given,
    x,
    beside,
    signs,
    mean,
    deviation,
    scale,
    shift,
    beside_mean,
    beside_deviation,
    beside_scale,
    total,
    change,
    beside_change,
    rows,
    columns,
    given_columns,
    ADDS: tl.constexpr,
    NORMS: tl.constexpr,
    OF_BATCH: tl.constexpr,
    PASSED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """The gradient of x, and of what is beside where that is not `given` itself. `total` has the sums of
    `backward_sums` over all rows; PASSED: `given` is what ReLU let back, as that has kept it."""
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    start = tl.program_id(0) * ROWS
    row = (start + tl.arange(0, ROWS)).to(tl.int64)
    there = (row < rows)[:, None]
    place = row[:, None] * columns + column[None]
    value = tl.load(x + place, mask=there, other=0.0).to(tl.float32)
    gradient = tl.load(given + row[:, None] * given_columns + column[None], mask=there, other=0.0).to(tl.float32)
    if not PASSED:
        gradient = _through_relu(gradient, value, signs, scale, shift, start, column, columns, ADDS, ROWS)
    less = gradient
    if OF_BATCH:
        normal = (value - tl.load(mean + column)[None]) * tl.load(deviation + column)[None]
        first = (tl.load(total + column) / rows)[None]
        less = gradient - first - normal * (tl.load(total + columns + column) / rows)[None]
    tl.store(change + place, (less * tl.load(scale + column)[None]).to(tl.bfloat16), mask=there)
    if NORMS:
        less = gradient
        if OF_BATCH:
            other = tl.load(beside + place, mask=there, other=0.0).to(tl.float32) - tl.load(beside_mean + column)[None]
            other = other * tl.load(beside_deviation + column)[None]
            first = (tl.load(total + column) / rows)[None]
            less = gradient - first - other * (tl.load(total + 2 * columns + column) / rows)[None]
        gradient = less * tl.load(beside_scale + column)[None]
    if NORMS or (ADDS and not PASSED):
        tl.store(beside_change + place, gradient.to(tl.bfloat16), mask=there)


@triton.jit
def adam(
    value,
    gradient,
    first,
    second,
    rates,
    decays,
    factor,
    steps,
    total,
    BETA1: tl.constexpr,
    BETA2: tl.constexpr,
    LOG_BETA1: tl.constexpr,
    LOG_BETA2: tl.constexpr,
    EPSILON: tl.constexpr,
    SIZE: tl.constexpr,
):
    """A step of Adam, for each value with its own decay and rate, which is multiplied by `factor`; `steps` counts them,
    this one included. The logarithms are to base 2."""
    place = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    there = place < total
    count = tl.load(steps)  # float64: the corrections of the first steps are differences of nearly equal numbers
    correction1 = (1 - tl.exp2(count * LOG_BETA1)).to(tl.float32)
    correction2 = (1 - tl.exp2(count * LOG_BETA2)).to(tl.float32)
    old = tl.load(value + place, mask=there)
    slope = tl.load(gradient + place, mask=there) + old * tl.load(decays + place, mask=there)
    mean = tl.load(first + place, mask=there)
    mean += (slope - mean) * (1 - BETA1)
    square = tl.load(second + place, mask=there) * BETA2 + slope * slope * (1 - BETA2)
    tl.store(first + place, mean, mask=there)
    tl.store(second + place, square, mask=there)
    rate = tl.load(rates + place, mask=there) * tl.load(factor) / correction1
    step = rate * mean / (tl.sqrt(square / correction2) + EPSILON)
    tl.store(value + place, old - step, mask=there)


@triton.jit
def renew(sources, targets, members, counts, wanted, SIZE: tl.constexpr):
    """A piece of a row for each program, if its member is wanted: `counts` float32 values from one address to
    another."""
    piece = tl.program_id(0)
    if tl.load(wanted + tl.load(members + piece)) != 0:
        place = tl.arange(0, SIZE)
        there = place < tl.load(counts + piece)
        source = tl.load(sources + piece).to(tl.pointer_type(tl.float32))
        target = tl.load(targets + piece).to(tl.pointer_type(tl.float32))
        tl.store(target + place, tl.load(source + place, mask=there), mask=there)
