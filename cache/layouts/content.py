"""Names and checks that follow from a file's content: what torch, Triton and an ELF loader go by."""

from __future__ import annotations

import ast
import base64
import hashlib
import struct

_ELF_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
_LOADED = 1


def code_name(data: bytes) -> str:
    """Return the 51 letters by which Inductor names content."""
    return base64.b32encode(hashlib.sha256(data).digest())[:51].decode("ascii").lower()


def source_name(text: bytes) -> str:
    """Return the stem of the file in which Inductor keeps a generated source."""
    return "c" + code_name(text.strip())


def triton_name(sha256: str) -> str:
    """Return the folder name that Triton makes of a key of 64 hex digits; ValueError for anything else."""
    return base64.b32encode(bytes.fromhex(sha256)).decode("ascii").rstrip("=")


def parses(text: bytes) -> str:
    """Return "" where Python could compile the text, else what stands in the way; nothing is executed."""
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        return f"{type(error).__name__} in line {line}" if line else type(error).__name__
    return ""


def elf_fault(data: bytes) -> str:
    """Return "" for a whole shared library of 64 bits, else in words what is wrong with it.

    Whole means that everything a loader maps, and the section table, lies inside the file.
    """
    if not data:
        return "empty"
    if data[:4] != b"\x7fELF":
        return "not an ELF file"
    if len(data) < _ELF_HEADER.size or data[4] != 2 or data[5] != 1:
        return "cut off in the header" if len(data) < _ELF_HEADER.size else "not a library of this kind"
    fields = _ELF_HEADER.unpack_from(data)
    programs, sections = fields[5], fields[6]
    program_size, program_count, section_size, section_count = fields[9:13]
    ends = [sections + section_size * section_count if sections else 0]
    if program_size >= _PROGRAM_HEADER.size:
        for number in range(program_count):
            at = programs + number * program_size
            if at + _PROGRAM_HEADER.size > len(data):
                return f"cut off: {len(data)} bytes, its program table lies beyond"
            kind, _, offset, _, _, size, *_ = _PROGRAM_HEADER.unpack_from(data, at)
            ends.append(offset + size if kind == _LOADED else 0)
    needed = max(ends)
    return f"cut off: {len(data)} bytes of at least {needed}" if needed > len(data) else ""
