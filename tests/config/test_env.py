"""Environment variables of vLLM are no factor of ours, whether or not vLLM's own key holds them."""

from __future__ import annotations

from graphkiln.cache.factors.env import env_factor
from tests.config.differences import ENV
from tests.config.oracle import needs, rows


@needs("env")
def test_no_variable_of_vllm_changes_our_env_factor() -> None:
    before = env_factor({})
    for row in rows("env"):
        given = row["input"]
        assert env_factor({given["name"]: str(given["value"])}) == before, (given["name"], ENV)
