from __future__ import annotations

from typing import Any

import pytest
import torch

from graphkiln.core.deployment import Deployment
from graphkiln.core.models.load import build
from graphkiln.core.models.served import ServedModel
from graphkiln.core.models.source import identify
from graphkiln.core.ops.errors import OutOfBlocks
from graphkiln.core.runner import Batch, Request, Runner, dummy_context
from tests.models.conftest import MakeFolder
from tests.models.folders import pretrained

PROMPT = [5, 17, 42, 9, 77, 3, 100]


def runner_for(model: str, *, num_blocks: int | None = None, **fields: Any) -> Runner:
    deployment = Deployment(model, **fields)
    served = build(identify(deployment), deployment)
    return Runner(served, served.backbone, None, deployment, num_blocks=num_blocks)


def eager_greedy(deployment: Deployment, prompt: list[int], count: int) -> list[int]:
    """Greedy tokens of transformers' own attention, the whole text run again for each."""
    served = build(identify(deployment), deployment, attention="eager")
    ids = list(prompt)
    for _ in range(count):
        with torch.no_grad():
            hidden = served.backbone(torch.tensor(ids), torch.arange(len(ids)))
            ids.append(int(served.compute_logits(hidden[-1:]).argmax()))
    return ids[len(prompt) :]


@pytest.mark.parametrize("model", ["preset:llama", "preset:qwen3"])
def test_greedy_tokens_of_a_preset_equal_eager_s(model: str) -> None:
    runner = runner_for(model, block_size=4)
    free = runner.allocator.free
    assert runner.generate_greedy(PROMPT, 20) == eager_greedy(Deployment(model), PROMPT, 20)
    assert runner.allocator.free == free


@pytest.mark.parametrize(
    ("model_type", "config"),
    [
        ("llama", {}),
        ("qwen3", {"head_dim": 16}),
        ("gemma2", {"head_dim": 16, "sliding_window": 5, "query_pre_attn_scalar": 16}),
    ],
)
def test_greedy_tokens_of_a_folder_equal_generate(
    make_folder: MakeFolder, model_type: str, config: dict[str, Any]
) -> None:
    folder = make_folder(model_type, initializer_range=0.2, eos_token_id=None, pad_token_id=0, **config)
    model = pretrained(folder)
    prompt = torch.tensor([PROMPT])
    want = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=16, do_sample=False)
    assert runner_for(str(folder)).generate_greedy(PROMPT, 16) == want[0, len(PROMPT) :].tolist()


def test_a_prompt_longer_than_a_batch_is_run_in_chunks() -> None:
    whole = runner_for("preset:llama").generate_greedy(PROMPT, 6)
    assert runner_for("preset:llama", max_num_batched_tokens=3).generate_greedy(PROMPT, 6) == whole


def test_generation_ends_with_a_stop_token(make_folder: MakeFolder) -> None:
    folder = make_folder(initializer_range=0.2, eos_token_id=None)
    free_run = runner_for(str(folder)).generate_greedy(PROMPT, 16)
    stop = free_run[4]
    (folder / "generation_config.json").write_text(f'{{"eos_token_id": {stop}}}')
    got = runner_for(str(folder)).generate_greedy(PROMPT, 16)
    assert got == free_run[: free_run.index(stop) + 1]


def test_requests_in_one_batch_equal_requests_alone() -> None:
    runner = runner_for("preset:llama", block_size=4)
    prompts = [(1, 2, 3, 4, 5), (9,), (7, 8, 9, 10, 11, 12, 13, 14, 15)]
    blocks = [tuple(runner.allocator.take(4)) for _ in prompts]
    alone = [runner.execute(Batch((Request(p, 0, b),))) for p, b in zip(prompts, blocks, strict=True)]
    batch = Batch(tuple(Request(p, 0, b) for p, b in zip(prompts, blocks, strict=True)))
    torch.testing.assert_close(runner.execute(batch), torch.cat(alone))
    mixed = Batch(
        (
            Request((6,), 5, blocks[0]),
            Request((3, 2, 1), 0, tuple(runner.allocator.take(1))),
            Request((4, 4), 1, blocks[1]),
        )
    )
    got = runner.execute(mixed)
    for row, whole in enumerate([(1, 2, 3, 4, 5, 6), (3, 2, 1), (9, 4, 4)]):
        request = Request(whole, 0, tuple(runner.allocator.take(2)))
        torch.testing.assert_close(got[row : row + 1], runner.execute(Batch((request,))))


@pytest.mark.parametrize(
    ("requests", "reason"),
    [
        ([], "at least one request"),
        ([((), 0)], "at least one new token"),
        ([((1,) * 9, 0)], "9 tokens in a batch, max_num_batched_tokens is 8"),
        ([((1,), 0)] * 3, "3 requests in a batch, max_num_seqs is 2"),
        ([((1,), 16)], "a request of 17 tokens, max_model_len is 16"),
    ],
)
def test_a_batch_beyond_the_limits_is_refused(
    requests: list[tuple[tuple[int, ...], int]], reason: str
) -> None:
    runner = runner_for("preset:llama", max_num_batched_tokens=8, max_num_seqs=2, max_model_len=16)
    batch = Batch(tuple(Request(tokens, computed, (0, 1, 2)) for tokens, computed in requests))
    with pytest.raises(ValueError, match=reason):
        runner.execute(batch)


def test_a_generation_beyond_the_limits_is_refused() -> None:
    runner = runner_for("preset:llama", max_model_len=16, num_blocks=1)
    with pytest.raises(ValueError, match="more than max_model_len 16"):
        runner.generate_greedy(PROMPT, 10)
    with pytest.raises(ValueError, match="needs a prompt"):
        runner.generate_greedy([], 3)
    runner.allocator.take(1)
    with pytest.raises(OutOfBlocks):
        runner.generate_greedy(PROMPT, 3)


def test_the_default_cache_holds_a_request_of_full_length() -> None:
    runner = runner_for("preset:llama", max_num_seqs=1)
    assert runner.allocator.free * runner.deployment.block_size == runner.served.max_model_len


@pytest.fixture(scope="module")
def short() -> tuple[ServedModel, Deployment]:
    deployment = Deployment("preset:llama", max_model_len=10, block_size=4)
    return build(identify(deployment), deployment), deployment


@pytest.mark.parametrize(("num_tokens", "lengths"), [(1, [1]), (10, [10]), (11, [10, 1]), (25, [10, 10, 5])])
def test_a_dummy_context_has_no_request_beyond_the_length(
    short: tuple[ServedModel, Deployment], num_tokens: int, lengths: list[int]
) -> None:
    served, deployment = short
    context = dummy_context(served, deployment, num_tokens)
    assert context.metadata.seq_lens.tolist() == lengths
    slots = context.metadata.slot_mapping.tolist()
    assert len(set(slots)) == num_tokens
    cache = next(iter(context.kv_caches.values()))
    assert max(slots) < cache.key.shape[0] * 4
    assert cache.key.shape[0] == sum(-(-length // 4) for length in lengths)
    _, positions = served.example_inputs(num_tokens)
    starts = context.metadata.query_start_loc[:-1]
    assert positions[starts].tolist() == [0] * len(lengths)
