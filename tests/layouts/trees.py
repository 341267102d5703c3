"""Small trees of the shapes that other programs write, made from nothing; none of it can be run."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import pickle
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from graphkiln.cache.layouts.content import code_name, source_name, triton_name

NAME = "toy.models.tiny"
FOLDER = "/opt/toy/lib/site-packages"
SOURCE = (
    "class Tiny:\n    def forward(self, x):\n        return helper(x)\n\n\ndef helper(x):\n    return x + 1\n"
)
GENERATED = "# kernel of piece {}\nasync_compile = None\n\ndef call(args):\n    return args\n"
DTYPES = {"float32": "f32", "bfloat16": "bf16"}
VERSION = "0.32.0"


def made(name: str, **attributes: Any) -> Any:
    """Return an object that pickles as an instance of the class `name`, which need not exist."""
    module, _, short = name.rpartition(".")
    one = type(short, (), {"__module__": module})()
    vars(one).update(attributes)
    return one


class Writer(pickle._Pickler):
    """Writes classes by name, without a look at whether they can be imported."""

    def save_global(self, obj: Any, name: str | None = None) -> None:
        # The methods of the pickler that is written in Python are not typed.
        writer: Any = self
        writer.save(obj.__module__)
        writer.save(name or obj.__qualname__)
        writer.write(pickle.STACK_GLOBAL)
        writer.memoize(obj)

    dispatch: ClassVar[dict[Any, Any]] = {**pickle._Pickler.dispatch, type: save_global}


def pickled(value: Any) -> bytes:
    stream = io.BytesIO()
    Writer(stream, protocol=4).dump(value)
    return stream.getvalue()


def sha256(data: str | bytes) -> str:
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()


def library(size: int = 256) -> bytes:
    """Return the least that is a whole shared library: a header and one loaded segment up to the end."""
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 3, 62, 1, 0, 64, 0, 0, 64, 56, 1, 64, 0, 0
    )
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, size, size, 4096)
    return (header + segment).ljust(size, b"\0")


@dataclass
class Vllm:
    """What one start of a vLLM leaves in a cache root, with one thing or another changed."""

    root: Path
    env: Mapping[str, Any] = field(default_factory=dict)
    config: str = "0123456789"
    source: str = SOURCE
    dtype: str = "float32"
    high: int = 64
    mega: bool = True
    aot: bool = True
    adaptor: bool = False
    unpacked: bool = False
    disabled: bool = False
    ranks: tuple[str, ...] = ("0_0",)
    backend: str = "<toy backend>"
    at: float = 1_700_000_000.0
    hidden: int = 8
    compiler_text: str = ""
    graph_bytes: int = 0

    @property
    def variables(self) -> dict[str, Any]:
        switches = {
            "VLLM_USE_MEGA_AOT_ARTIFACT": self.mega and self.aot and not self.disabled,
            "VLLM_USE_AOT_COMPILE": self.aot and not self.disabled,
            "VLLM_USE_STANDALONE_COMPILE": not self.adaptor,
            "VLLM_DISABLE_COMPILE_CACHE": self.disabled,
            "VLLM_XGRAMMAR_CACHE_MB": 512,
            "VLLM_NIXL_SIDE_CHANNEL_PORT": 5600,
        }
        return switches | dict(self.env)

    @property
    def code(self) -> str:
        return sha256(f"{FOLDER}/{NAME.replace('.', '/')}.py\n{self.source}")

    @property
    def compiler(self) -> str:
        return sha256(f"{self.mega} {self.aot} {self.adaptor} {self.disabled} {self.compiler_text}")[:10]

    @property
    def environment_hash(self) -> str:
        return sha256(json.dumps(self.variables, sort_keys=True))

    @property
    def short(self) -> str:
        return sha256(str([self.environment_hash, self.config, self.code, self.compiler]))[:10]

    @property
    def long(self) -> str:
        """The AOT folder's name; with mega artifacts more goes into it than anybody can compute."""
        parts: list[Any] = [self.environment_hash, self.config]
        parts += [self.compiler] if self.mega else []
        return sha256(str([*parts, sha256(f"{VERSION}Tiny.forward2")]))

    @property
    def pieces(self) -> Path:
        return self.root / "torch_compile_cache" / self.short

    @property
    def aot_folder(self) -> Path:
        return self.root / "torch_compile_cache" / "torch_aot_compile" / self.long

    @property
    def part(self) -> Path:
        return self.pieces / f"rank_{self.ranks[0]}" / "backbone"

    @property
    def model(self) -> Path:
        return self.aot_folder / f"rank_{self.ranks[0]}" / "model"

    def write(self) -> Vllm:
        """Write it all."""
        for rank in self.ranks:
            part = self.pieces / f"rank_{rank}" / "backbone"
            hashes = {"config_hash": self.config, "code_hash": self.code, "compiler_hash": self.compiler}
            facts = json.dumps({"env": self.variables, **hashes}, indent=2, sort_keys=True)
            self.put(part / "cache_key_factors.json", facts, 0)
            self.put(part / "computation_graph.py", self.graph(), 20)
            if not self.disabled and not (self.aot and self.mega):
                self.put(part / "vllm_compile_cache.py", self.index(part), 20)
            if self.aot and not self.disabled:
                self.put(self.aot_folder / f"rank_{rank}" / "model", pickled(self.outer()), 20)
        if self.aot and not self.disabled:
            inductor_files(self.aot_folder / "inductor_cache", self.at)
        return self

    def put(self, path: Path, data: str | bytes, after: float) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        os.utime(path, (self.at + after, self.at + after))

    def graph(self) -> str:
        kind = DTYPES[self.dtype]
        body = "".join(
            f"\n    class submod_{n}(torch.nn.Module):\n        def forward(self, x):\n"
            f"            # File: {FOLDER}/{NAME.replace('.', '/')}.py:{n + 1} in forward, code: ...\n"
            + (
                "            y = torch.ops.vllm.unified_attention_with_output(x)\n"
                if n == 1
                else "            y = x\n"
            )
            for n in range(3)
        )
        return (
            "from __future__ import annotations\nimport torch\nclass GraphModule(torch.nn.Module):\n"
            f'    def forward(self, L_self_modules_layers_modules_0_w_: "{kind}[4, {self.hidden}]"):\n'
            f"        pass\n{body}"
        )

    def index(self, part: Path) -> str:
        """Write the artifacts of one part; return the text of the index that names them."""
        rows: dict[Any, Any] = {}
        for number in (0, 2):
            handle = f"artifact_compile_range_1_{self.high}_subgraph_{number}"
            key, data = f"a{code_name(handle.encode())}", compiled(number)
            if self.adaptor:
                graph = f"f{code_name(handle.encode())}"
                base = part.parent / "inductor_cache"
                self.put(base / "fxgraph" / graph[1:3] / graph / code_name(data), data, 20)
                text = GENERATED.format(number).encode()
                source = base / source_name(text)[1:3] / f"{source_name(text)}.py"
                self.put(source, text, 20)
                rows[((1, self.high), number, "inductor")] = {
                    "cache_key": None, "graph_handle": (graph, str(source)),
                }  # fmt: skip
                continue
            if self.unpacked:
                folder = part / handle
                self.put(folder / "fxgraph" / "ab" / f"f{code_name(data)}" / code_name(data), data, 20)
                self.put(folder / "aotautograd" / key / code_name(data), data, 20)
            else:
                self.put(part / handle, artifact(key, data), 20)
            rows[((1, self.high), number, "inductor_standalone")] = {
                "cache_key": key, "graph_handle": (handle, str(part / handle)),
            }  # fmt: skip
        return repr(rows)

    def outer(self) -> dict[str, Any]:
        lines = self.source.splitlines(keepends=True)
        inlined = [
            made(
                "torch._dynamo.package.InlinedSource", module=NAME, firstlineno=first, lastlineno=last,
                checksum=sha256("".join(lines[first - 1 : last - 1])), content=self.source,
            )
            for first, last in ((2, 4), (6, 8))
        ]  # fmt: skip
        return {
            "original_code": made(
                "torch._dynamo.package.SerializedCode", co_qualname="Tiny.forward", co_firstlineno=2,
                co_filename=f"{FOLDER}/{NAME.replace('.', '/')}.py",
            ),
            "source_info": made("torch._dynamo.package.SourceInfo", inlined_sources=set(inlined)),
            "compiled_fn": ("load", pickled(self.inner())),
            "system_info": made(
                "torch._dynamo.package.SystemInfo", python_version="3.11.7", torch_version="2.13.0",
                toolkit_version=None, triton_version=(3, 6), gpu_name=None,
            ),
            "backend_name": self.backend,
            "device_type": "cpu",
        }  # fmt: skip

    def inner(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "prefix": "backbone",
            "submod_names": ["submod_0", "submod_1", "submod_2"],
            "graph_module": bytes(self.graph_bytes),
        }
        if self.mega:
            stored = {f"submod_{number}_(1, {self.high})": pickled(compiled(number)) for number in (0, 2)}
            found["standalone_compile_artifacts"] = made(
                "vllm.compilation.caching.StandaloneCompiledArtifacts",
                submodule_bytes={name: sha256(data) for name, data in stored.items()},
                submodule_bytes_store={sha256(data): data for data in stored.values()},
            )
        return found


def compiled(number: int = 0, vectorised: int = 2) -> bytes:
    """Return what Inductor pickles about one graph."""
    source = GENERATED.format(number)
    script = (
        "import os\nos.environ['TORCHINDUCTOR_COMPILE_THREADS'] = '1'\n"
        "torch._inductor.config.size_asserts = False\n# torch version: 2.13.0+cpu\n"
    )
    return pickled(
        made(
            "torch._inductor.output_code.CompiledFxGraph", cache_key=source_name(source.encode()),
            source_code=source, runnable_graph_str=script,
            metrics_deltas=made(
                "torch._inductor.metrics.CachedMetricsDeltas", generated_kernel_count=3,
                generated_cpp_vec_kernel_count=vectorised,
            ),
        )
    )  # fmt: skip


def artifact(key: str, graph: bytes, version: int = 1, torch_key: bytes = b"\1" * 32) -> bytes:
    """Return a binary artifact of one graph."""

    def fields(*parts: bytes) -> bytes:
        return b"".join(struct.pack(">Q", len(part)) + part for part in parts)

    def words(*names: str) -> list[bytes]:
        return [base64.b64encode(name.encode()) for name in names]

    payload = struct.pack(">Q", version)
    for kind in ("inductor", "aot_autograd"):
        payload += fields(*words(kind)) + struct.pack(">Q", 1) + fields(*words(key), graph)
    body = fields(b"CacheCompiledArtifact", torch_key, *words(key), checked(payload))
    return checked(body)


def checked(data: bytes) -> bytes:
    return struct.pack(">I", zlib.crc32(data)) + data


def inductor_files(folder: Path, at: float = 1_700_000_000.0) -> dict[str, Path]:
    """Write one file of each kind that Inductor keeps; return them by what they are."""
    text, graph = GENERATED.format(7).encode(), compiled(7)
    name = code_name(graph)
    found = {
        "source": folder / source_name(text)[1:3] / f"{source_name(text)}.py",
        "library": folder / "ab" / f"c{'a' * 51}.main.so",
        "probe": folder / "cd" / f"c{'b' * 51}.so",
        "graph": folder / "fxgraph" / "ef" / f"f{'c' * 51}" / name,
        "result": folder / "aotautograd" / f"a{'d' * 51}" / name,
        "lock": folder / "locks" / f"c{'a' * 51}.lock",
    }
    data = {
        "source": text,
        "library": library(),
        "probe": library(),
        "graph": graph,
        "result": graph,
        "lock": b"",
    }
    for kind, path in found.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data[kind])
        os.utime(path, (at + 10, at + 10))
    return found


def triton_kernel(folder: Path, name: str = "add_kernel", arch: int = 90) -> Path:
    """Write what Triton keeps of one kernel; return its folder."""
    key = sha256(f"{name} {arch}")
    place = folder / triton_name(key)
    place.mkdir(parents=True)
    facts = {"hash": key, "name": name, "num_warps": 4, "triton_version": "3.6.0",
             "target": {"backend": "cuda", "arch": arch, "warp_size": 32}}  # fmt: skip
    files = {f"{name}.json": json.dumps(facts).encode(), f"{name}.cubin": library(),
             f"{name}.ptx": b"// ptx\n", f"{name}.ttir": b"module {}\n"}  # fmt: skip
    for file, data in files.items():
        (place / file).write_bytes(data)
    children = {file: str(place / file) for file in files}
    (place / f"__grp__{name}.json").write_text(json.dumps({"child_paths": children}))
    return place
