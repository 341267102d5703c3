"""Which batches an attention backend's launches can be captured for."""

from __future__ import annotations

import enum


class AttentionSupport(enum.IntEnum):
    """What a FULL graph may hold of a backend's attention, from nothing to every batch.

    UNIFORM_SINGLE_TOKEN_DECODE are batches of one token for each request, UNIFORM_BATCH those of the
    same number of tokens for each. Of several backends the smallest counts.
    """

    NEVER = 0
    UNIFORM_SINGLE_TOKEN_DECODE = 1
    UNIFORM_BATCH = 2
    ALWAYS = 3
