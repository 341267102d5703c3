"""A process of its own for one start: run as a script, prints what happened as one JSON object.

    started.py FUNCTION MODEL {"deployment": {...}, "config": {...}, "options": {...}}

Before anything else it becomes the user that TEST_UID names, and it counts by itself which
child processes are started, so that what graphkiln counts can be held against it.
"""

import ctypes
import json
import os
import sys

SPAWNS = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "os.exec")


PR_SET_KEEPCAPS, CAPABILITY_VERSION_3, CAP_DAC_READ_SEARCH = 8, 0x20080522, 2


def become(uid: int) -> None:
    """Becomes a user that may read all, for Python itself may lie in a private place, and write little."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    may = 1 << CAP_DAC_READ_SEARCH
    if libc.capset(header, (ctypes.c_uint32 * 6)(may, may, 0, 0, 0, 0)) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def main() -> None:
    # CUDA builds of torch look for libraries while they are imported, with a program of the system's.
    import torch  # noqa: F401

    spawned: list[str] = []
    sys.addaudithook(lambda event, args: spawned.append(event) if event in SPAWNS else None)
    uid = os.environ.pop("TEST_UID", None)
    if uid is not None:
        become(int(uid))

    from dataclasses import asdict

    from graphkiln.cache.errors import GraphkilnError
    from graphkiln.core import start
    from graphkiln.core.config.compilation import CompilationConfig
    from graphkiln.core.deployment import Deployment

    function, model, given = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    deployment = Deployment(model, **given.get("deployment", {}))
    config = CompilationConfig(**given.get("config", {}))
    answer: dict[str, object] = {}
    try:
        done = getattr(start, function)(deployment, config, **given.get("options", {}))
        report = done.report if function == "load_model" else done
        answer = {"report": asdict(report)}
        if function == "load_model" and "greedy" in given:
            answer["tokens"] = done.generate_greedy(*given["greedy"])
    except GraphkilnError as error:
        answer = {"error": type(error).__name__, "text": str(error)}
    dynamo = sys.modules.get("torch._dynamo.convert_frame")
    answer |= {
        "spawned": spawned,
        "frames": 0 if dynamo is None else dynamo.FRAME_COUNTER,
        "imported": sorted(sys.modules),
        "ran": [sys.prefix, start.__file__],
    }
    print(json.dumps(answer, default=str))


main()
