"""The Triton kernels of paged attention: writing the cache, attending, and joining the parts of split keys.

Batches are R requests of any lengths, one after the other. Counts that differ from step to step are
read from device memory, so that a captured launch serves every batch of its padded size. Tried on
Triton 3.6: compiled for compute capability 9.0, and on CPU tensors by its interpreter.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(
    do_not_specialize=["num_slots", "key_token", "key_head", "value_token", "value_head"],
)
def write_kernel(
    key,
    value,
    key_cache,
    value_cache,
    slot_mapping,
    num_slots,
    key_token,
    key_head,
    value_token,
    value_head,
    KV_HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Copies a token's keys and values [kv_heads, size] into its slot; one program a token.

    A token beyond `num_slots`, or with a slot below 0, is padding and written nowhere.
    """
    token = tl.program_id(0)
    if token < num_slots:
        slot = tl.load(slot_mapping + token).to(tl.int64)
        if slot >= 0:
            at = tl.arange(0, BLOCK)
            row = token.to(tl.int64)
            for start in range(0, KV_HEADS * HEAD_SIZE, BLOCK):
                item = start + at
                there = item < KV_HEADS * HEAD_SIZE
                source = row * key_token + (item // HEAD_SIZE).to(tl.int64) * key_head + item % HEAD_SIZE
                found = tl.load(key + source, mask=there)
                tl.store(key_cache + slot * (KV_HEADS * HEAD_SIZE) + item, found, mask=there)
            for start in range(0, KV_HEADS * VALUE_SIZE, BLOCK):
                item = start + at
                there = item < KV_HEADS * VALUE_SIZE
                source = (
                    row * value_token + (item // VALUE_SIZE).to(tl.int64) * value_head + item % VALUE_SIZE
                )
                found = tl.load(value + source, mask=there)
                tl.store(value_cache + slot * (KV_HEADS * VALUE_SIZE) + item, found, mask=there)


@triton.jit
def _bounded(scores, softcap):
    """softcap * tanh(scores / softcap); an exponential that overflows leaves the bound itself."""
    return softcap * (1.0 - 2.0 / (tl.exp(2.0 * scores / softcap) + 1.0))


@triton.jit(
    do_not_specialize=[
        "num_tokens",
        "num_reqs",
        "num_splits",
        "table_row",
        "query_token",
        "query_head",
        "output_token",
        "output_head",
    ],
)
def attend_kernel(
    query,
    key_cache,
    value_cache,
    output,
    part_sums,
    part_stats,
    query_start_loc,
    seq_lens,
    block_table,
    num_tokens,
    num_reqs,
    num_splits,
    table_row,
    query_token,
    query_head,
    output_token,
    output_head,
    scale,
    softcap,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    VALUE_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_N: tl.constexpr,
    ONE_BLOCK: tl.constexpr,
    SPLIT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Attends with a block of BLOCK_Q tokens of one request, for the GROUP heads that share a key head.

    The rows of a block are (token, head) pairs. Programs: (blocks, kv_heads, splits). ONE_BLOCK: no
    request has more than BLOCK_Q tokens, so that block r is request r. SPLIT: the keys are shared
    among `num_splits` programs, each of which leaves an unscaled sum with its maximum and weight for
    `join_kernel`. Rows of padding behind the last token are set to zero. WINDOW 0 is no window.
    """
    block = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)

    row = tl.arange(0, BLOCK_M)
    row_token = row // GROUP
    head = kv_head * GROUP + row % GROUP
    held = row_token < BLOCK_Q
    at_head = tl.arange(0, HEAD_PAD)
    at_value = tl.arange(0, VALUE_PAD)

    if split == 0:
        padding = tl.load(query_start_loc + num_reqs) + block * BLOCK_Q + row_token
        place = padding.to(tl.int64) * output_token + head * output_head
        tl.store(
            output + place[:, None] + at_value[None, :],
            tl.zeros([BLOCK_M, VALUE_PAD], dtype=output.dtype.element_ty),
            mask=(held & (padding < num_tokens))[:, None] & (at_value < VALUE_SIZE)[None, :],
        )

    if ONE_BLOCK:
        request = block
        if request >= num_reqs:
            return
        start = tl.load(query_start_loc + request)
        first = 0
    else:
        # Request r owns the blocks from start(r) // BLOCK_Q + r on: enough for each, whatever the lengths.
        low = 0
        high = num_reqs
        while low < high:
            middle = (low + high) // 2
            if tl.load(query_start_loc + middle) // BLOCK_Q + middle <= block:
                low = middle + 1
            else:
                high = middle
        request = low - 1
        start = tl.load(query_start_loc + request)
        first = (block - (start // BLOCK_Q + request)) * BLOCK_Q
    count = tl.load(query_start_loc + request + 1) - start
    if first >= count:
        return

    seq_len = tl.load(seq_lens + request)
    position = seq_len - count + first + row_token
    valid = held & (first + row_token < count)
    token = (start + first + row_token).to(tl.int64)
    queries = tl.load(
        query + (token * query_token + head * query_head)[:, None] + at_head[None, :],
        mask=valid[:, None] & (at_head < HEAD_SIZE)[None, :],
        other=0.0,
    )

    end_key = tl.minimum(seq_len, seq_len - count + first + BLOCK_Q)
    begin_tile = 0
    if WINDOW > 0:
        begin_tile = tl.maximum(0, seq_len - count + first + 1 - WINDOW) // BLOCK_N
    end_tile = (end_key + BLOCK_N - 1) // BLOCK_N
    if SPLIT:
        share = (end_tile - begin_tile + num_splits - 1) // num_splits
        begin_tile = begin_tile + split * share
        end_tile = tl.minimum(begin_tile + share, end_tile)

    # Exponentials are of base 2, which is what the hardware has: scores are taken times log2(e).
    most = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    weight = tl.zeros([BLOCK_M], dtype=tl.float32)
    sums = tl.zeros([BLOCK_M, VALUE_PAD], dtype=tl.float32)
    for tile in range(begin_tile, end_tile):
        at = tile * BLOCK_N + tl.arange(0, BLOCK_N)
        there = at < end_key
        held_in = tl.load(
            block_table + request.to(tl.int64) * table_row + at // BLOCK_SIZE, mask=there, other=0
        )
        slot = held_in.to(tl.int64) * BLOCK_SIZE + at % BLOCK_SIZE
        place = slot * KV_HEADS + kv_head
        keys = tl.load(
            key_cache + (place * HEAD_SIZE)[None, :] + at_head[:, None],
            mask=there[None, :] & (at_head < HEAD_SIZE)[:, None],
            other=0.0,
        )
        scores = tl.dot(queries, keys, input_precision=PRECISION)
        scores = scores * scale
        if SOFTCAP:
            scores = _bounded(scores, softcap)
        scores = scores * 1.4426950408889634
        seen = there[None, :] & (at[None, :] <= position[:, None])
        if WINDOW > 0:
            seen = seen & (at[None, :] > position[:, None] - WINDOW)
        scores = tl.where(seen, scores, float("-inf"))
        highest = tl.maximum(most, tl.max(scores, 1))
        # A row that has seen no key yet must not become NaN.
        level = tl.where(highest == float("-inf"), 0.0, highest)
        shares = tl.exp2(scores - level[:, None])
        shrink = tl.exp2(most - level)
        most = highest
        weight = weight * shrink + tl.sum(shares, 1)
        values = tl.load(
            value_cache + (place * VALUE_SIZE)[:, None] + at_value[None, :],
            mask=there[:, None] & (at_value < VALUE_SIZE)[None, :],
            other=0.0,
        )
        sums = sums * shrink[:, None] + tl.dot(shares.to(values.dtype), values, input_precision=PRECISION)

    if SPLIT:
        part = (token * (KV_HEADS * GROUP) + head) * num_splits + split
        tl.store(
            part_sums + (part * VALUE_SIZE)[:, None] + at_value[None, :],
            sums,
            mask=valid[:, None] & (at_value < VALUE_SIZE)[None, :],
        )
        tl.store(part_stats + part * 2, most, mask=valid)
        tl.store(part_stats + part * 2 + 1, weight, mask=valid)
    else:
        place = token * output_token + head * output_head
        tl.store(
            output + place[:, None] + at_value[None, :],
            (sums / tl.where(weight == 0.0, 1.0, weight)[:, None]).to(output.dtype.element_ty),
            mask=valid[:, None] & (at_value < VALUE_SIZE)[None, :],
        )


@triton.jit(do_not_specialize=["num_reqs", "num_splits", "output_token", "output_head"])
def join_kernel(
    part_sums,
    part_stats,
    output,
    query_start_loc,
    num_reqs,
    num_splits,
    output_token,
    output_head,
    HEADS: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    VALUE_PAD: tl.constexpr,
    MOST_SPLITS: tl.constexpr,
):
    """Joins the parts of one token and head into its output; one program each, tokens of padding apart."""
    token = tl.program_id(0)
    head = tl.program_id(1)
    if token >= tl.load(query_start_loc + num_reqs):
        return
    split = tl.arange(0, MOST_SPLITS)
    there = split < num_splits
    at_value = tl.arange(0, VALUE_PAD)
    part = (token.to(tl.int64) * HEADS + head) * num_splits + split
    most = tl.load(part_stats + part * 2, mask=there, other=float("-inf"))
    weight = tl.load(part_stats + part * 2 + 1, mask=there, other=0.0)
    scale = tl.exp2(most - tl.max(most, 0))
    sums = tl.load(
        part_sums + (part * VALUE_SIZE)[:, None] + at_value[None, :],
        mask=(there & (weight > 0.0))[:, None] & (at_value < VALUE_SIZE)[None, :],
        other=0.0,
    )
    joined = tl.sum(sums * scale[:, None], 0) / tl.sum(weight * scale, 0)
    place = token.to(tl.int64) * output_token + head * output_head
    tl.store(output + place + at_value, joined.to(output.dtype.element_ty), mask=at_value < VALUE_SIZE)
