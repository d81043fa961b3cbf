"""The GPU's part of `fused` and of Adam.

The first four are passes over a matrix of activations in bfloat16, with sums in float32. A program holds a tile of ROWS
places and COLUMNS channels. `sums` has two rows of sums for every share of the rows, so that they can be added up in a
fixed order: the same input gives the same bits.
"""

import triton
import triton.language as tl


@triton.jit
def column_sums(x, sums, rows, columns, share, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((COLUMNS,), tl.float32)
    square = tl.zeros((COLUMNS,), tl.float32)
    begin = tl.program_id(0) * share
    for start in range(begin, begin + share, ROWS):
        row = (start + tl.arange(0, ROWS)).to(tl.int64)
        there = (row < rows)[:, None]
        value = tl.load(x + row[:, None] * columns + column[None], mask=there, other=0.0).to(tl.float32)
        total += tl.sum(value, 0)
        square += tl.sum(value * value, 0)
    place = sums + tl.program_id(0) * 2 * columns + column
    tl.store(place, total)
    tl.store(place + columns, square)


@triton.jit
def apply(
    x,
    beside,
    out,
    scale,
    shift,
    rows,
    columns,
    beside_columns,
    ADDS: tl.constexpr,
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
        other = row[:, None] * beside_columns + (column % beside_columns)[None]
        value += tl.load(beside + other, mask=there, other=0.0).to(tl.float32)
    tl.store(out + place, tl.maximum(value, 0.0).to(tl.bfloat16), mask=there)


@triton.jit
def backward_sums(
    given, x, out, mean, deviation, sums, rows, columns, share, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    middle, width = tl.load(mean + column)[None], tl.load(deviation + column)[None]
    total = tl.zeros((COLUMNS,), tl.float32)
    along = tl.zeros((COLUMNS,), tl.float32)
    begin = tl.program_id(0) * share
    for start in range(begin, begin + share, ROWS):
        row = (start + tl.arange(0, ROWS)).to(tl.int64)
        there = (row < rows)[:, None]
        place = row[:, None] * columns + column[None]
        gradient = tl.load(given + place, mask=there, other=0.0).to(tl.float32)
        gradient = tl.where(tl.load(out + place, mask=there, other=0.0) > 0, gradient, 0.0)
        normal = (tl.load(x + place, mask=there, other=0.0).to(tl.float32) - middle) * width
        total += tl.sum(gradient, 0)
        along += tl.sum(gradient * normal, 0)
    place = sums + tl.program_id(0) * 2 * columns + column
    tl.store(place, total)
    tl.store(place + columns, along)


@triton.jit
def backward_apply(
    given,
    x,
    out,
    change,
    passed,
    mean,
    deviation,
    scale,
    first,
    second,
    rows,
    columns,
    ADDS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    there = (row < rows)[:, None]
    place = row[:, None] * columns + column[None]
    gradient = tl.load(given + place, mask=there, other=0.0).to(tl.float32)
    gradient = tl.where(tl.load(out + place, mask=there, other=0.0) > 0, gradient, 0.0)
    if ADDS:
        tl.store(passed + place, gradient.to(tl.bfloat16), mask=there)
    normal = tl.load(x + place, mask=there, other=0.0).to(tl.float32) - tl.load(mean + column)[None]
    normal = normal * tl.load(deviation + column)[None]
    less = tl.load(first + column)[None] + normal * tl.load(second + column)[None]
    value = (gradient - less) * tl.load(scale + column)[None]
    tl.store(change + place, value.to(tl.bfloat16), mask=there)


@triton.jit
def adam(
    value, gradient, first, second, rates, decays, corrections, each, total, beta1, beta2, epsilon, SIZE: tl.constexpr
):
    place = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    there = place < total
    member = place // each
    old = tl.load(value + place, mask=there)
    slope = tl.load(gradient + place, mask=there) + old * tl.load(decays + member, mask=there)
    mean = tl.load(first + place, mask=there)
    mean += (slope - mean) * (1 - beta1)
    square = tl.load(second + place, mask=there) * beta2 + slope * slope * (1 - beta2)
    tl.store(first + place, mean, mask=there)
    tl.store(second + place, square, mask=there)
    rate = tl.load(rates + member, mask=there) / tl.load(corrections)
    step = rate * mean / (tl.sqrt(square / tl.load(corrections + 1)) + epsilon)
    tl.store(value + place, old - step, mask=there)
