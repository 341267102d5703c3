"""Differences grouped under what caused them: a changed dtype is one cause, not two hundred differences.

Which fact can bring about which others is a table. A difference that an earlier one explains is a
consequence of it; one that nothing explains is a cause of its own, however small. A difference that
cannot change generated code explains nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from graphkiln.cache.factors.difference import Difference

# Packages whose functions a trace goes through: another version of one changes many of them at once.
PACKAGES = ("transformers", "graphkiln", "huggingface_hub")
PACKAGE = "package "
# The remedy of a length that nobody set, of a model without a limit of its own.
FOLLOWS_TOKENS = "it follows max_num_batched_tokens"


@dataclass(frozen=True)
class Cause:
    """A difference that stands for itself, and the differences that follow from it."""

    difference: Difference
    consequences: tuple[Difference, ...] = ()


def topic_of(difference: Difference) -> str:
    """Return what kind of fact differs, as the table names it: `config.dtype`, `code.function changed`."""
    name = difference.name
    if difference.factor != "code":
        return f"{difference.factor}.{name}"
    for start in ("environment", "torch state", "parameter", "op", "file", PACKAGE.strip()):
        if name.startswith(f"{start} "):
            what = name.rpartition(" ")[2] if start == "parameter" else ""
            came = f" {difference.kind}" if start in ("environment", "file") else ""
            return " ".join(f"code.{start}{came} {what}".split())
    if name == "class" or name.startswith("class "):
        return "code.class"
    if ":" in name and " " not in name and "[" not in name:
        return f"code.function {difference.kind}"
    return f"code.value {_value_topic(difference)}"


def _value_topic(difference: Difference) -> str:
    if difference.kind != "changed":
        return difference.kind
    held = f"{difference.then} {difference.now}"
    return "dtype" if _DTYPE.search(held) else "function" if "'function'" in held else "changed"


# Code facts that follow from something else; a function whose own text changed is never one of them.
_FOLLOWS = r"code\.(parameter|value|class|op|function (added|removed)|environment (added|removed)|smallest).*"
_BUILD = r"build\..*"
_OF_DTYPE = r"code\.(parameter dtype|value (dtype|added|removed)|function (added|removed))"
# A new text of a function reads other values; a value that it reads both before and after is no news of it.
_OF_TEXT = (
    r"code\.(parameter.*|value (function|added|removed)|class|op|function (added|removed)"
    r"|environment (added|removed)|smallest)"
)
_DTYPE = re.compile(r"torch\.(b?float|u?int|bool|complex|half|double|long|short)")

# In the order in which a person would name them: the first row that fits a difference ranks it, and
# the second pattern says which later differences it explains.
TABLE: tuple[tuple[str, str], ...] = (
    (
        r"config\.model\.(model_type|architectures.*|factory|class)",
        rf"config\.(model\..*|max_model_len|dtype)|{_FOLLOWS}|{_BUILD}",
    ),
    (r"config\.model\.max_position_embeddings", rf"config\.max_model_len|{_FOLLOWS}|{_BUILD}"),
    (r"config\.dtype", rf"{_OF_DTYPE}|{_BUILD}"),
    (r"config\.model\..*", rf"{_FOLLOWS}|{_BUILD}"),
    (r"config\.compilation\.splitting_ops.*", rf"code\.op.*|{_BUILD}"),
    (r"config\.compilation\..*", _BUILD),
    (r"config\.(\w+_parallel_size|enable_lora|num_speculative_tokens)", rf"{_FOLLOWS}|{_BUILD}"),
    (r"config\.max_num_batched_tokens", rf"code\.smallest.*|{_BUILD}"),
    (r"config\.max_model_len", rf"code\.(parameter|value).*|{_BUILD}"),
    (r"config\..*", rf"{_FOLLOWS}|{_BUILD}"),
    (
        r"compiler\.torch",
        rf"compiler\.(torch_sources|\w+\.changed\..*)|code\.torch state.*|{_FOLLOWS}|{_BUILD}",
    ),
    (r"compiler\.python", rf"{_FOLLOWS}|{_BUILD}"),
    (r"compiler\.torch_sources", rf"code\.torch state.*|{_FOLLOWS}|{_BUILD}"),
    # What only a GPU has: Triton, and the modules of ours that make its attention.
    (
        r"compiler\.target\.device",
        rf"compiler\.(target\..*|triton.*|pipeline\.(ops|core|models)\..*)|{_FOLLOWS}|{_BUILD}",
    ),
    (r"compiler\.pipeline\..*", rf"compiler\.pipeline\..*|{_FOLLOWS}|{_BUILD}"),
    (r"compiler\.target\.arch", rf"compiler\.target\..*|{_BUILD}"),
    (r"compiler\.target\.isa", rf"compiler\.target\..*|{_BUILD}"),
    (r"compiler\..*", _BUILD),
    (r"env\..*", _BUILD),
    (r"code\.environment changed", rf"{_FOLLOWS}|{_BUILD}"),
    (r"code\.package", rf"{_FOLLOWS}|{_BUILD}"),
    (r"code\.function changed", rf"{_OF_TEXT}|{_BUILD}"),
    (r"code\.class", rf"{_FOLLOWS}|{_BUILD}"),
    (r"code\.parameter.*", _BUILD),
    (r"code\..*", _BUILD),
    (r"build\..*", r"(?!)"),
)  # fmt: skip


def grouped(found: Iterable[Difference]) -> tuple[Cause, ...]:
    """Return the causes, what can change generated code first, each with its consequences."""
    ranked = sorted(found, key=lambda difference: (not difference.relevant, _rank(difference)))
    causes: list[tuple[Difference, list[Difference]]] = []
    for difference in ranked:
        owner = next((one for one in causes if explains(one[0], difference)), None)
        if owner is None:
            causes.append((difference, []))
        else:
            owner[1].append(difference)
    return tuple(Cause(difference, tuple(follows)) for difference, follows in causes)


def explains(cause: Difference, other: Difference) -> bool:
    """Say whether `other` follows from `cause`."""
    if not cause.relevant:
        return False
    if cause.name.startswith(PACKAGE) and _is_function_of(other, cause.name.removeprefix(PACKAGE)):
        return True
    if other.remedy == FOLLOWS_TOKENS and cause.name == "max_num_batched_tokens":
        return True
    return re.fullmatch(TABLE[_rank(cause)][1], topic_of(other)) is not None


def _rank(difference: Difference) -> int:
    topic = topic_of(difference)
    found = (rank for rank, (pattern, _) in enumerate(TABLE) if re.fullmatch(pattern, topic))
    return next(found, len(TABLE) - 1)


def _is_function_of(difference: Difference, package: str) -> bool:
    module = difference.name.partition(":")[0]
    is_function = topic_of(difference).startswith("code.function")
    return is_function and (module == package or module.startswith(f"{package}."))


def package_differences(
    found: Sequence[Difference], then: Mapping[str, str], now: Mapping[str, str]
) -> list[Difference]:
    """Return the packages of another version that functions among `found` belong to; versions by name."""
    differing = [name for name in PACKAGES if then.get(name, "") != now.get(name, "")]
    return [
        Difference(
            "code", PACKAGE + name, then.get(name), now.get(name),
            remedy=f"pip install {name}=={then[name]}" if name in then else f"uninstall {name}",
        )
        for name in differing
        if any(_is_function_of(difference, name) for difference in found)
    ]  # fmt: skip
