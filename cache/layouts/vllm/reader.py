"""The reader of vLLM's compile cache."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from graphkiln.cache.inspect.catalogue import Catalogue
from graphkiln.cache.layouts.found import ForeignAccount, ForeignRow, ForeignVerdict
from graphkiln.cache.layouts.vllm.links import linked
from graphkiln.cache.layouts.vllm.rows import row_of, superseded
from graphkiln.cache.layouts.vllm.scan import scan_tree


@dataclass(frozen=True)
class VllmReader:
    """Reads the tree that vLLM 0.32 writes, in each of its forms."""

    name: str = "vllm"

    def places(self, environ: Mapping[str, str] = os.environ) -> list[Path]:
        """Return where vLLM keeps its cache, the likeliest place first."""
        found = [environ.get("VLLM_CACHE_ROOT", "")]
        if environ.get("XDG_CACHE_HOME"):
            found.append(os.path.join(environ["XDG_CACHE_HOME"], "vllm"))
        found.append(os.path.join(environ.get("HOME") or "~", ".cache", "vllm"))
        return [Path(os.path.expanduser(place)) for place in found if place]

    def scan(self, root: Path) -> Catalogue:
        """Return the entries below a cache root, newest first."""
        tree = scan_tree(root)
        rows = [replace(row_of(unit, tree), reader=self) for unit in linked(tree)]
        ordered = sorted(superseded(rows), key=lambda row: (row.created, row.id), reverse=True)
        return Catalogue(tree.root, tuple(ordered), tree.foreign)

    def account(self, row: ForeignRow) -> ForeignAccount:
        """Return what an entry says about itself."""
        # Here and below: a list of entries needs neither, and starts the faster.
        from graphkiln.cache.layouts.vllm.account import account_of

        return account_of(row)

    def verify(self, row: ForeignRow) -> ForeignVerdict:
        """Return what is wrong with an entry, every byte of it read."""
        from graphkiln.cache.layouts.vllm.verify import verdict_of

        return verdict_of(row)
