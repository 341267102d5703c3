"""vLLM's environment factor: which of its variables cannot change code, and what removes a difference.

vLLM hashes every variable that it registers and does not leave out by name, so that ports and image tags
make an entry miss. Each row holds for a pattern of names; what fits no row is taken to change code.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from typing import Any

from graphkiln.cache.factors.difference import Difference


@dataclass(frozen=True)
class Neutral:
    """Variables that are in vLLM's hash and cannot change code: why, and the change of the launch.

    `remedy` may hold `{set}`, which gives the variable its earlier value.
    """

    names: str
    why: str
    remedy: str


NEUTRAL = (
    Neutral(
        r"VLLM_(LOOPBACK_IP|\w+_(HOST|HOSTNAME|ADDR|ADDRESS|IP|PORT))|MOONCAKE_\w+_HOSTNAME",
        "an address of the pod",
        "give each pod the same value ({set}), or leave it unset where nothing uses it",
    ),
    Neutral(
        r"VLLM_DP_\w+|VLLM_RAY_BUNDLE_INDICES|VLLM_RAY_PER_WORKER_GPUS",
        "the place of a worker",
        "start workers without it ({set}): with it each worker compiles for itself",
    ),
    Neutral(
        r"VLLM_(IMAGE_TAG|BUILD_\w+|USAGE_SOURCE|VERSION_OVERRIDE)",
        "a name of the image",
        "leave it out of the image, or {set}",
    ),
    Neutral(
        r"VLLM_\w*(CACHE_DIR|_TMP_DIR|TMPDIR|SO_PATH)",
        "a place",
        "use one fixed path in every start: {set}",
    ),
    Neutral(
        r"VLLM_(PROCESS_NAME_PREFIX|DISABLE_LOG_LOGO|GC_DEBUG|PATTERN_MATCH_DEBUG|LOG\w*|DEBUG\w*|TRACE_FUNCTION)"
        r"|VERBOSE",
        "talk of the process",
        "{set}",
    ),
    Neutral(r"VLLM_\w*TIMEOUT\w*", "a time limit", "{set}"),
    Neutral(r"VLLM_XGRAMMAR_CACHE_MB|VLLM_\w+_CACHE_SIZE_MB", "the size of a cache", "{set}"),
    Neutral(
        r"RAY_EXPERIMENTAL_NOSET_\w+",
        "which devices a worker sees",
        "set the same in every start: {set}",
    ),
    Neutral(
        r"CMAKE_BUILD_TYPE|NVCC_THREADS|VLLM_USE_PRECOMPILED\w*|VLLM_TARGET_DEVICE|VLLM_DOCKER_BUILD_CONTEXT",
        "of use only while vLLM is built",
        "{set}",
    ),
)  # fmt: skip
# They choose how and where compiled code is kept: the compiler factor follows them.
SWITCHES = {
    "VLLM_DISABLE_COMPILE_CACHE": "no cache at all, and ahead-of-time compilation off",
    "VLLM_USE_AOT_COMPILE": "the whole start ahead of time, or pieces alone",
    "VLLM_USE_MEGA_AOT_ARTIFACT": "artifacts inside model, or beside it",
    "VLLM_USE_STANDALONE_COMPILE": "the standalone adaptor, or the old one",
    "VLLM_COMPILE_CACHE_SAVE_FORMAT": "artifacts as files, or as folders",
}
# Left out of the hash by vLLM: they may differ from start to start.
LEFT_OUT = re.compile(
    r"MAX_JOBS|LD_LIBRARY_PATH|LOCAL_RANK|CUDA_VISIBLE_DEVICES|(NO|FORCE)_COLOR|S3_\w+|DO_NOT_TRACK"
    r"|VLLM_(RPC_BASE_PATH|USE_MODELSCOPE|RINGBUFFER_WARNING_INTERVAL|DEBUG_DUMP_PATH|PORT|CACHE_ROOT"
    r"|ENABLE_STARTUP_PLAN|XLA_CACHE_PATH|CONFIG_ROOT|SERVER_DEV_MODE|DP_MASTER_(IP|PORT)"
    r"|NIXL_SIDE_CHANNEL_HOST|RANDOMIZE_DP_DUMMY_INPUTS|MODEL_REDIRECT_PATH|HOST_IP"
    r"|ELASTIC_EP_SCALE_UP_LAUNCH|FORCE_AOT_LOAD|API_KEY|USAGE_STATS_SERVER|NO_USAGE_STATS|DO_NOT_TRACK"
    r"|LOGGING_\w+|LOG_STATS_INTERVAL|DEBUG_LOG_API_SERVER_RESPONSE|TUNED_CONFIG_FOLDER"
    r"|FLASHINFER_AUTOTUNE_\w+|HTTP_TIMEOUT_KEEP_ALIVE|EXECUTE_MODEL_TIMEOUT_SECONDS"
    r"|WORKER_SHUTDOWN_TIMEOUT_SECONDS|KEEP_ALIVE_ON_ENGINE_DEATH|(IMAGE|VIDEO|AUDIO)_FETCH_TIMEOUT"
    r"|MEDIA_\w+|MAX_AUDIO_\w+|MAX_EMBED_DECODE_BYTES|MAX_IMAGE_PIXELS|VIDEO_LOADER_BACKEND"
    r"|OBJECT_STORAGE_SHM_BUFFER_NAME|ASSETS_CACHE\w*|WORKER_MULTIPROC_METHOD|ENABLE_V1_MULTIPROCESSING"
    r"|V1_OUTPUT_PROC_CHUNK_SIZE|CPU_KVCACHE_SPACE|CPU_MOE_PREPACK|ZENTORCH_WEIGHT_PREPACK"
    r"|TEST_FORCE_LOAD_FORMAT|ENABLE_CUDA_COMPATIBILITY|CUDA_COMPATIBILITY_PATH"
    r"|SKIP_MODEL_NAME_VALIDATION|SKIP_VERSION_SUFFIX|TRITON_JIT_WARMUP_NUM_THREADS)"
)


def with_launch_remedy(difference: Difference) -> Difference:
    """Return a difference of the environment with its relevance, and what to change in the launch."""
    if difference.factor != "env":
        return difference
    setting = setting_text(difference.name, difference.then)
    for row in NEUTRAL:
        if re.fullmatch(row.names, difference.name):
            remedy = f"{row.remedy.format(set=setting)} (it is {row.why})"
            return replace(difference, relevant=False, remedy=remedy)
    if difference.name in SWITCHES:
        return replace(difference, remedy=f"{setting} (it says: {SWITCHES[difference.name]})")
    return replace(difference, remedy=setting)


def setting_text(name: str, value: Any) -> str:
    """Return how to give a variable the value that vLLM made of it."""
    if value is None:
        return f"unset {name}"
    if isinstance(value, bool):
        value = int(value)
    if isinstance(value, list):
        value = ",".join(map(str, value))
    return f"set {name}={shlex.quote(str(value)) if str(value) else ''}"
