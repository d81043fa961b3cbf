"""The GPU's part of `convolution`. Activations are matrices as in `fused`; `CHANNELS` is the number of one member's.

Weights have two layouts for cuDNN, both channels-last: *straight*, (member, output, tap, input), and *turned* for the
gradient of the input, (member, input, tap backwards, output).
"""

import triton
import triton.language as tl


@triton.jit
def arrange(
    weight,
    scale,
    straight,
    turned,
    outputs,
    inputs,
    taps,
    SCALES: tl.constexpr,
    TURNS: tl.constexpr,
    SIZE: tl.constexpr,
):
    """From (member, output, input, tap) into both layouts, each output times its scale."""
    member, tap = tl.program_id(0), tl.program_id(1)
    output = (tl.program_id(2) * SIZE + tl.arange(0, SIZE))[:, None]
    for start in range(0, inputs, SIZE):
        entry = (start + tl.arange(0, SIZE))[None]
        there = (output < outputs) & (entry < inputs)
        value = tl.load(weight + ((member * outputs + output) * inputs + entry) * taps + tap, mask=there)
        if SCALES:
            value *= tl.load(scale + member * outputs + output, mask=output < outputs)
        value = value.to(straight.dtype.element_ty)
        tl.store(straight + ((member * outputs + output) * taps + tap) * inputs + entry, value, mask=there)
        if TURNS:
            place = ((member * inputs + entry) * taps + taps - 1 - tap) * outputs + output
            tl.store(turned + place, value, mask=there)


@triton.jit
def disarrange(straight, weight, inputs, taps, total, SIZE: tl.constexpr):
    """The way back, for gradients."""
    place = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    there = place < total
    row, entry, tap = place // (inputs * taps), place % (inputs * taps) // taps, place % taps
    value = tl.load(straight + (row * taps + tap) * inputs + entry, mask=there)
    tl.store(weight + place, value.to(weight.dtype.element_ty), mask=there)


@triton.jit
def small_conv(
    x, weight, out, rows, columns, height, width, STRIDE: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr
):
    """A 3×3 convolution; `height` and `width` are the output's, the input's are STRIDE times that."""
    member = tl.program_id(1)
    channel = tl.arange(0, CHANNELS)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    image, line, column = row // (height * width), row // width % height, row % width
    total = tl.zeros((ROWS, CHANNELS), tl.float32)
    for tap in range(9):
        down, right = line * STRIDE + tap // 3 - 1, column * STRIDE + tap % 3 - 1
        inside = (row < rows) & (down >= 0) & (down < height * STRIDE) & (right >= 0) & (right < width * STRIDE)
        place = ((image * height * STRIDE + down) * width * STRIDE + right).to(tl.int64)[:, None] * columns
        value = tl.load(x + place + member * CHANNELS + channel[None], mask=inside[:, None], other=0.0)
        matrix = tl.load(weight + ((member * CHANNELS + channel[:, None]) * 9 + tap) * CHANNELS + channel[None])
        total = tl.dot(value, tl.trans(matrix), total)
    place = row.to(tl.int64)[:, None] * columns + member * CHANNELS + channel[None]
    tl.store(out + place, total.to(tl.bfloat16), mask=(row < rows)[:, None])


@triton.jit
def _twice(row, height, width):
    """The row of the place (2·line, 2·column) of an image twice as high and wide."""
    image, line, column = row // (height * width), row // width % height, row % width
    return ((image * 2 * height + 2 * line) * 2 * width + 2 * column).to(tl.int64)


@triton.jit
def points(x, weight, out, rows, columns, x_columns, height, width, ROWS: tl.constexpr, CHANNELS: tl.constexpr):
    """A 1×1 convolution with stride 2; `height` and `width` are the output's. x may be shared by all members."""
    member = tl.program_id(1)
    channel = tl.arange(0, CHANNELS)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = (row < rows)[:, None]
    place = _twice(row, height, width)[:, None] * x_columns + member * CHANNELS % x_columns + channel[None]
    value = tl.load(x + place, mask=there, other=0.0)
    matrix = tl.load(weight + (member * CHANNELS + channel[None]) * CHANNELS + channel[:, None])  # (input, output)
    place = row.to(tl.int64)[:, None] * columns + member * CHANNELS + channel[None]
    tl.store(out + place, tl.dot(value, matrix).to(tl.bfloat16), mask=there)


@triton.jit
def points_weights(
    given, x, sums, rows, columns, x_columns, height, width, share, ROWS: tl.constexpr, CHANNELS: tl.constexpr
):
    """The gradient of its weights, (member, output, input), for every share of the rows."""
    member = tl.program_id(1)
    channel = tl.arange(0, CHANNELS)
    total = tl.zeros((CHANNELS, CHANNELS), tl.float32)
    begin = tl.program_id(0) * share
    for start in range(begin, begin + share, ROWS):
        row = start + tl.arange(0, ROWS)
        there = (row < rows)[:, None]
        place = row.to(tl.int64)[:, None] * columns + member * CHANNELS + channel[None]
        slope = tl.load(given + place, mask=there, other=0.0)
        place = _twice(row, height, width)[:, None] * x_columns + member * CHANNELS % x_columns + channel[None]
        value = tl.load(x + place, mask=there, other=0.0)
        total = tl.dot(tl.trans(slope), value, total)
    block = (tl.program_id(0) * tl.num_programs(1) + member) * CHANNELS
    tl.store(sums + (block + channel[:, None]) * CHANNELS + channel[None], total)


@triton.jit
def fork_gradient(
    given,
    short_given,
    weight,
    short_weight,
    change,
    rows,
    columns,
    height,
    width,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """The gradient of what a 3×3 and a 1×1 convolution, both with stride 2, have read.

    `height` and `width` are those of `given`; of its four places per place a program computes one kind. An even line
    was read by the kernel's middle line only, an odd one by its last and, one line of `given` further, by its first.
    """
    member, odd_line, odd_column = tl.program_id(1), tl.program_id(2) // 2, tl.program_id(2) % 2
    channel = tl.arange(0, CHANNELS)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = row < rows
    line, column = row // width % height, row % width
    total = tl.zeros((ROWS, CHANNELS), tl.float32)
    for number in range((1 + odd_line) * (1 + odd_column)):
        down, right = number // (1 + odd_column), number % (1 + odd_column)
        tap = (1 + odd_line * (1 - 2 * down)) * 3 + 1 + odd_column * (1 - 2 * right)
        inside = there & (line + down < height) & (column + right < width)
        place = (row + down * width + right).to(tl.int64)[:, None] * columns + member * CHANNELS + channel[None]
        slope = tl.load(given + place, mask=inside[:, None], other=0.0)
        matrix = tl.load(weight + ((member * CHANNELS + channel[:, None]) * 9 + tap) * CHANNELS + channel[None])
        total = tl.dot(slope, matrix, total)
    if odd_line + odd_column == 0:
        place = row.to(tl.int64)[:, None] * columns + member * CHANNELS + channel[None]
        slope = tl.load(short_given + place, mask=there[:, None], other=0.0)
        matrix = tl.load(short_weight + (member * CHANNELS + channel[:, None]) * CHANNELS + channel[None])
        total = tl.dot(slope, matrix, total)
    target = _twice(row, height, width) + odd_line * 2 * width + odd_column
    place = target[:, None] * columns + member * CHANNELS + channel[None]
    tl.store(change + place, total.to(tl.bfloat16), mask=there[:, None])
