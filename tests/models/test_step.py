from __future__ import annotations

import pytest
import torch

from graphkiln.core.step import Request, StepBuffers

BUFFERS = (16, 4, 6, torch.device("cpu"))
REQUESTS = [Request((7, 8, 9), 2, (5, 3)), Request((4,), 0, (1,))]


def test_a_step_is_laid_out_and_padded() -> None:
    inputs = StepBuffers(*BUFFERS).fill(REQUESTS, 4, num_tokens=6, num_reqs=3)
    metadata = inputs.metadata
    assert inputs.token_ids.tolist() == [7, 8, 9, 4, 0, 0]
    assert inputs.positions.tolist() == [2, 3, 4, 0, 0, 0]
    assert metadata.slot_mapping.tolist() == [22, 23, 12, 4, -1, -1]
    assert metadata.query_start_loc.tolist() == [0, 3, 4, 4]
    assert metadata.seq_lens.tolist() == [5, 1, 0]
    assert metadata.block_table[:2, :2].tolist() == [[5, 3], [1, 0]]
    assert (metadata.max_query_len, inputs.num_tokens, inputs.num_reqs) == (3, 4, 2)


def test_steps_of_one_size_lie_in_the_same_place() -> None:
    buffers = StepBuffers(*BUFFERS)

    def places(requests: list[Request]) -> list[int]:
        inputs = buffers.fill(requests, 4, num_tokens=6, num_reqs=3, max_query_len=3)
        metadata = inputs.metadata
        tensors = [inputs.token_ids, inputs.positions, metadata.query_start_loc, metadata.seq_lens]
        return [tensor.data_ptr() for tensor in [*tensors, metadata.block_table, metadata.slot_mapping]]

    first = places(REQUESTS)
    assert places(REQUESTS[:1]) == first
    assert all(place % 16 == first[0] % 16 for place in first)


def test_a_step_leaves_nothing_of_the_one_before() -> None:
    buffers = StepBuffers(*BUFFERS)
    buffers.fill(REQUESTS, 4, num_tokens=6, num_reqs=3)
    inputs = buffers.fill(REQUESTS[1:], 4, num_tokens=6, num_reqs=3)
    assert inputs.token_ids.tolist() == [4, 0, 0, 0, 0, 0]
    assert inputs.metadata.slot_mapping.tolist() == [4, -1, -1, -1, -1, -1]
    assert inputs.metadata.query_start_loc.tolist() == [0, 1, 1, 1]
    assert inputs.metadata.seq_lens.tolist() == [1, 0, 0]


def test_the_last_tokens_of_requests_are_found() -> None:
    buffers = StepBuffers(*BUFFERS)
    hidden = torch.arange(6).unsqueeze(1)
    mixed = buffers.fill(REQUESTS, 4, num_tokens=6, num_reqs=3)
    assert mixed.last_tokens(hidden).flatten().tolist() == [2, 3]
    decode = buffers.fill([Request((1,), 1, (0,)), Request((1,), 2, (1,))], 4, num_tokens=4, num_reqs=4)
    assert decode.last_tokens(hidden).flatten().tolist() == [0, 1]


def test_blocks_that_are_too_few_are_refused() -> None:
    with pytest.raises(ValueError, match="9 tokens do not fit 2 blocks of 4"):
        StepBuffers(*BUFFERS).fill([Request((1,), 8, (0, 1))], 4, num_tokens=1, num_reqs=1)
