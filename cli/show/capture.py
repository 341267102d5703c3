"""How the report of a capture check is shown: what each size takes, which sizes pay, which list to use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from graphkiln.cli.show.numbers import age_text, bytes_text, count_text, seconds_text
from graphkiln.cli.show.table import below, facts, table
from graphkiln.cli.show.terminal import Style

WAYS = ("eager", "compiled", "PIECEWISE", "FULL")


def capture_lines(found: Mapping[str, Any], style: Style, *, every: bool) -> list[str]:
    """Returns what a capture check found.

    Without `every` only sizes that are powers of two, and no verdict on single sizes.
    """
    rows = [row for row in found["rows"] if every or row["num_tokens"].bit_count() == 1]
    return [
        *below(facts(summary_pairs(found), style)),
        *below(row_lines(rows, style)),
        *below(padding_lines(found["padding"], style) if every else []),
        *below(never_lines(found["never_win"], style) if every else []),
        *below(facts(advice_pairs(found), style)),
    ]


def summary_pairs(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    graphs = " and ".join(f"{found['graphs'][way]} {way}" for way in WAYS if found["graphs"].get(way))
    lack = found["shortage"]
    unequal = [str(row["num_tokens"]) for row in found["rows"] if row["unequal"]]
    equal = f"no, not at {', '.join(unequal)} tokens" if unequal else "yes, every graph within its tolerance"
    launches = found["rows"][0]["launches"] if found["rows"] else {}
    return [
        ("device", f"{found['device']}, {age_text(found['at'])}"),
        ("estimate", estimate_text(found)),
        (
            "capture",
            f"{graphs} in {seconds_text(found['seconds'])} s, {bytes_text(found['bytes'])}" if graphs else "",
        ),
        ("equal", "" if lack else equal),
        ("launches", ", ".join(f"{way} {launches[way]:.0f}" for way in WAYS if way in launches)),
        ("memory", memory_text(found)),
    ]


def memory_text(found: Mapping[str, Any]) -> str:
    """Returns what of the memory is not back, and who has it; "" when all is."""
    leaked = f"{bytes_text(found['leaked'])} did not come back" if found["leaked"] else ""
    # The driver keeps room for as many graphs, and code that it loaded; nobody says which byte is whose.
    kept = f"{bytes_text(found['kept'])} more are outside this process's allocator" if found["kept"] else ""
    return ", ".join(filter(None, (leaked, kept)))


def estimate_text(found: Mapping[str, Any]) -> str:
    """Returns what the graphs were expected to take, mode by mode, and the room for them."""
    if not found["estimates"]:
        return ""
    need = sum(one["bytes"] for one in found["estimates"])
    modes = ", ".join(f"{one['mode']} {bytes_text(one['bytes'])}" for one in found["estimates"])
    margin = found["free"] - need
    fits = len(found["fitting"]) == len(set(found["sizes"]))
    room = (
        f"{bytes_text(margin)} to spare" if fits else f"room for {count_text(len(found['fitting']), 'size')}"
    )
    return f"{modes}; {bytes_text(found['free'])} free, {room}"


def row_lines(rows: Sequence[Mapping[str, Any]], style: Style) -> list[str]:
    """Returns the milliseconds of a step in each way, the memory of the graphs, and the worst error."""
    ways = [way for way in WAYS if any(way in row["ms"] for row in rows)]
    titles = (">tokens", *(f">{way} ms" for way in ways), ">MiB", ">error", ">allowed")
    cells = [
        (
            str(row["num_tokens"]),
            *(f"{row['ms'][way]:.3f}" if way in row["ms"] else "" for way in ways),
            f"{sum(row['bytes'].values()) / (1 << 20):.1f}" if row["bytes"] else "",
            *_worst(row["error"], row["allowed"]),
        )
        for row in rows
    ]
    return table(titles, cells, style) if cells else []


def _worst(errors: Mapping[str, float], allowed: Mapping[str, float]) -> tuple[str, str]:
    """The error that comes closest to what is allowed of it, and that limit."""
    mode = max(errors, key=lambda mode: errors[mode] / (allowed.get(mode) or 1.0), default=None)
    return ("", "") if mode is None else (f"{errors[mode]:.2e}", f"{allowed.get(mode, 0.0):.2e}")


def padding_lines(losses: Sequence[Mapping[str, Any]], style: Style) -> list[str]:
    """Returns the steps that would be faster without a graph than padded to the next one."""
    cells = [
        (
            f"{loss['first']} to {loss['last']}" if loss["first"] != loss["last"] else str(loss["first"]),
            f"{loss['way']} {loss['size']}",
            f"{loss['graph_ms']:.3f}",
            f"{loss['plain_ms']:.3f}",
        )
        for loss in losses
    ]
    titles = (">padding costs more at", "in graph", ">ms", ">without a graph")
    return table(titles, cells, style) if cells else []


def never_lines(sizes: Sequence[Mapping[str, Any]], style: Style) -> list[str]:
    cells = [(f"{one['way']} {one['size']}", one["reason"]) for one in sizes]
    return table(("never wins", "because"), cells, style) if cells else []


def advice_pairs(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns which list to use: the one that fits, or the one that serves best."""
    lack, best = found["shortage"], found["suggestion"]
    if lack is not None:
        told = (
            "as measured" if lack["measured"] else "half the size that failed: a guess, nothing was measured"
        )
        return [
            (
                "no memory",
                f"at the {lack['mode']} graph of {lack['num_tokens']} tokens, after {lack['captured']} of "
                f"{lack['planned']}; none is in use: {lack['detail']}",
            ),
            ("fits", f"{count_text(len(lack['sizes']), 'size')}, {told}"),
            ("use", option_text(lack["sizes"])),
        ]
    if best is None:
        return []
    weights = "your traffic" if best["counted"] else "each doubling of the size served as often"
    larger = f"; {best['larger']:.1%} of the steps are larger than any graph" if best["larger"] else ""
    same = sorted(set(found["sizes"])) == best["sizes"]
    worth = (
        "the sizes in use are the best that were measured"
        if same
        else f"{best['ratio']:.4f} of the time of all steps with {count_text(len(best['sizes']), 'size')} "
        f"instead of {len(set(found['sizes']))}"
    )
    return [
        ("suggested", f"{worth}, with {weights}{larger}"),
        ("use", "" if same else option_text(best["sizes"])),
        ("not measured", ", ".join(map(str, best["interpolated"]))),
    ]


def option_text(sizes: Sequence[int]) -> str:
    """Returns what to type for a list of sizes."""
    if not sizes:
        return "-cc.cudagraph_mode=NONE"
    return f"-cc.cudagraph_capture_sizes=[{','.join(map(str, sizes))}]"
