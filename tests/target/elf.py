"""The smallest ELF files that say what a cubin says: sections by name, and a kernel's register count."""

from __future__ import annotations

import struct


def cubin(kernel: str, registers: int | None) -> bytes:
    """Returns a cubin with one kernel; `registers` None leaves their count out."""
    info = struct.pack("<BBHII", 4, 0x11, 8, 13, 0)
    # A value in the place of the size, before what is looked for.
    info += struct.pack("<BBH", 3, 0x1B, 128)
    if registers is not None:
        info += struct.pack("<BBHII", 4, 0x2F, 8, 13, registers)
    sections = [("", b""), (".shstrtab", b""), (".nv.info", info), (f".text.{kernel}", b"\0" * 16)]
    names = b"".join(name.encode() + b"\0" for name, _ in sections)
    sections[1] = (".shstrtab", names)
    body, headers = b"", b""
    for name, data in sections:
        headers += struct.pack(
            "<IIQQQQIIQQ", names.index(name.encode() + b"\0"), 1, 0, 0, 64 + len(body), len(data), 0, 0, 1, 0
        )
        body += data
    head = bytearray(64)
    head[:4] = b"\x7fELF"
    struct.pack_into("<Q", head, 0x28, 64 + len(body))
    struct.pack_into("<HHH", head, 0x3A, 64, len(sections), 1)
    return bytes(head) + body + headers
