"""What a cubin says of its one kernel: an ELF file, read without CUDA."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from graphkiln.core.errors import CompileError

_REGISTER_COUNT = 0x2F  # EIATTR_REGCOUNT of the section `.nv.info`


def registers(cubin: bytes) -> int:
    """Returns the registers per thread, as the assembler wrote them into it."""
    info = next((data for name, data in _sections(cubin) if name == ".nv.info"), b"")
    at = 0
    while at + 4 <= len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        at += 4
        if form != 4:  # the value stands in the place of the size
            continue
        if attribute == _REGISTER_COUNT:
            return int(struct.unpack_from("<II", info, at)[1])
        at += size
    raise CompileError("kernel", "its machine code does not say how many registers it uses", "report it")


def kernel_name(cubin: bytes) -> str:
    """Returns the name of the kernel, "" when there is none."""
    return next(
        (name.removeprefix(".text.") for name, _ in _sections(cubin) if name.startswith(".text.")), ""
    )


def _sections(cubin: bytes) -> Iterator[tuple[str, bytes]]:
    (offset,) = struct.unpack_from("<Q", cubin, 0x28)
    count, names = struct.unpack_from("<HH", cubin, 0x3C)
    headers = [struct.unpack_from("<IIQQQQ", cubin, offset + 64 * index) for index in range(count)]
    for name, *_, at, size in headers:
        start = headers[names][4] + name
        yield cubin[start : cubin.index(b"\0", start)].decode(), cubin[at : at + size]
