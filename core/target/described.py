"""The one room in which a process is made to see a GPU that is not there.

Every private symbol of torch and Triton that this takes is replaced here and nowhere else, for good:
a process that has become a described device compiles for it and ends. Tried on the CUDA build, which
needs no GPU, of torch 2.11.0, 2.12.1, 2.13.0, 2.14.1 and 2.15.0, each with its Triton, and on the CPU build
of 2.13.0, for which `cpu_build` does more; another minor is refused by `required`.

Nothing can run by mistake: there is no driver, and the memory of a described device holds nothing.
"""

from __future__ import annotations

import importlib
import os
import re
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from graphkiln.core.errors import NoCompiler, NoDevice
from graphkiln.core.target.cubin import kernel_name, registers
from graphkiln.core.target.description import Description
from graphkiln.core.target.required import require_sources, require_tried

_become: list[Description] = []


def seen_here() -> Description | None:
    """Returns the described device that this process sees, None in one that sees what is there."""
    return _become[0] if _become else None


# What torch says where something would have to run on the device or to lie on it, by its builds.
_WANTED = re.compile(r"Could not run '([\w:.]+)' with arguments from the 'CUDA' backend|no NVIDIA driver")


def wanted_it(error: BaseException) -> NoDevice | None:
    """Returns what to say of an error that comes of the described device not being here, None of another."""
    found = _WANTED.search(str(error))
    if found is None or not _become:
        return None
    what = f"run {found[1]} on" if found[1] else "use"
    return NoDevice(
        f"target {_become[0].title}",
        f"torch wanted to {what} the device while compiling, and the device is not here",
        "compile on the device, or keep that part out of the compiled class",
    )


def become(description: Description) -> None:
    """Makes this process see the described device as its one GPU. Raises NoDevice if it cannot."""
    require_tried(description)
    require_sources(description)
    if torch.cuda.is_available():
        raise NoDevice(
            f"target {description.title}",
            "a process that has a GPU cannot see another in its place",
            "set CUDA_VISIBLE_DEVICES= (empty)",
        )
    # Compiler processes of Inductor's would not see what is replaced here.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    _guard_devices(description)
    properties = _Properties(description)
    _replace_driver(properties)
    _replace_interface(properties)
    _replace_fake_tensors()
    _replace_folding()
    _replace_triton(description)
    _become.append(description)
    torch._C._StaticCudaLauncher = _Launcher(description)  # type: ignore[assignment,misc]


def refuse_assembling() -> None:
    """Has Triton make no machine code in this process any more: whatever asks it to gets NoCompiler.

    A variable that names no program would not do: Triton takes its own assembler then.
    """
    knobs: Any = importlib.import_module("triton.knobs")

    def refuse(self: Any) -> None:
        raise NoCompiler(
            "Triton", "a kernel was to be compiled, and this process only loads", "precompile it"
        )

    for name in ("ptxas", "ptxas_blackwell"):
        setattr(knobs.nvidia_knobs, name, property(refuse))


class _Properties:
    """What `torch.cuda.get_device_properties` gives, as far as anybody reads it."""

    def __init__(self, description: Description) -> None:
        for name in description.device.__dataclass_fields__:
            setattr(self, name, getattr(description.device, name))
        self.gcnArchName = description.device.name


def _guard_devices(description: Description) -> None:
    """Puts a guard that does nothing where the driver's would be."""
    torch._C._ensureCUDADeviceGuardSet()
    if not torch.backends.cuda.is_built():
        # Not before: a torch that nobody tried may lack what it is made of.
        from graphkiln.core.target.cpu_build import stand_in

        stand_in(description)


def _replace_driver(properties: _Properties) -> None:
    nothing: dict[str, Callable[..., Any]] = {
        "_cuda_getDeviceCount": lambda: 1,
        "_cuda_getDevice": lambda: 0,
        "_cuda_setDevice": lambda index: None,
        "_cuda_exchangeDevice": lambda index: 0,
        "_cuda_maybeExchangeDevice": lambda index: 0,
        "_cuda_init": lambda: None,
        "_cuda_synchronize": lambda: None,
        "_cuda_getCurrentRawStream": lambda index: 0,
        "_cuda_isInBadFork": lambda: False,
    }
    for name, value in nothing.items():
        setattr(torch._C, name, value)
    state = torch.get_rng_state()
    public: dict[str, Any] = {
        "_lazy_init": lambda: None,
        "is_initialized": lambda: True,
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "_device_count_nvml": lambda: 1,
        "_cached_device_count": 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "synchronize": lambda device=None: None,
        "_exchange_device": lambda index: 0,
        "_maybe_exchange_device": lambda index: 0,
        "_get_device_properties": lambda index: properties,
        "get_device_properties": lambda device=None: properties,
        "mem_get_info": lambda device=None: (properties.total_memory, properties.total_memory),  # type: ignore[attr-defined]
        "default_generators": (torch.Generator("cpu"),),
        "get_rng_state": lambda device="cuda": state,
        "set_rng_state": lambda new_state, device="cuda": None,
        "is_current_stream_capturing": lambda: False,
    }
    for name, value in public.items():
        setattr(torch.cuda, name, value)


def _replace_interface(properties: _Properties) -> None:
    from torch._dynamo import device_interface

    device_interface.caching_worker_device_properties["cuda"] = [properties]
    device_interface.caching_worker_current_devices["cuda"] = 0
    interface = device_interface.CudaInterface
    answers: dict[str, Callable[..., Any]] = {
        "exchange_device": lambda index: 0,
        "maybe_exchange_device": lambda index: 0,
        "get_raw_stream": lambda index: 0,
        "is_available": lambda: True,
        "current_device": lambda: 0,
        "synchronize": lambda device=None: None,
    }
    for name, value in answers.items():
        setattr(interface, name, staticmethod(value))


def _replace_fake_tensors() -> None:
    from torch._subclasses import fake_tensor

    replaced: Any = fake_tensor
    replaced.init_gpu_context = lambda device: None
    replaced.FakeTensorMode.avoid_device_init = property(lambda self: True, lambda self, value: None)


def _replace_folding() -> None:
    """Constants are computed on the CPU: Inductor runs `aten.full` and its like outside of fake mode.

    Which of them are, and which are left to the device, `core.compile.folding` decides for both.
    """
    from torch._inductor import constant_folding
    from torch._inductor.fx_passes import joint_graph
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_map

    def on_cpu(value: Any) -> Any:
        if isinstance(value, torch.device) and value.type == "cuda":
            return torch.device("cpu")
        return value

    class OnCpu(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*tree_map(on_cpu, args), **tree_map(on_cpu, kwargs or {}))

    def on_the_cpu(original: Callable[..., Any]) -> Callable[..., Any]:
        def run(self: Any, *args: Any) -> Any:
            with OnCpu():  # type: ignore[no-untyped-call]
                return original(self, *args)

        return run

    uniform = joint_graph.UniformValueConstantFolder
    for folder in (constant_folding.ConstantFolder, uniform):
        setattr(folder, "_deduce_value", on_the_cpu(folder._deduce_value))  # noqa: B010
    setattr(uniform, "_add_peephole_patterns", on_the_cpu(uniform._add_peephole_patterns))  # noqa: B010


def _replace_triton(description: Description) -> None:
    triton: Any = importlib.import_module("triton")
    compiler: Any = importlib.import_module("triton.backends.compiler")
    driver: Any = importlib.import_module("triton.backends.nvidia.driver")
    helpers: Any = importlib.import_module("torch._inductor.runtime.triton_helpers")
    device = description.device
    limits = {
        "max_shared_mem": device.shared_memory_per_block_optin,
        "max_num_regs": device.regs_per_multiprocessor,
        "multiprocessor_count": device.multi_processor_count,
        "warpSize": device.warp_size,
    }

    def begin(self: Any) -> None:
        self.utils = types.SimpleNamespace(get_device_properties=lambda index: limits)

    target = compiler.GPUTarget("cuda", device.major * 10 + device.minor, device.warp_size)
    # A kind of Triton's own driver: in the place of any other, Inductor would put that one.
    answers: dict[str, Any] = {
        "__init__": begin,
        "get_current_target": lambda self: target,
        "get_current_device": lambda self: 0,
        "get_current_stream": lambda self, index=None: 0,
        "get_device_capability": lambda self, index=None: (device.major, device.minor),
    }
    described = type("Described", (driver.CudaDriver,), answers)
    triton.runtime.driver.set_active(described())
    helpers.set_driver_to_gpu = lambda: None


class _Launcher:
    """Stands for torch's launcher of machine code: takes what the device would take, and starts nothing."""

    def __init__(self, description: Description) -> None:
        self._title, self._device = description.title, description.device

    def _load_kernel(self, path: str, name: str, shared: int, device: int) -> tuple[int, int, int]:
        cubin = Path(path).read_bytes()
        if kernel_name(cubin) != name:
            raise ImportError(f"{name} is not the kernel of its machine code")
        if shared > self._device.shared_memory_per_block_optin:
            raise ImportError(f"{name} needs {shared} bytes of shared memory, more than {self._title} has")
        return 0, registers(cubin), 0

    def _launch_kernel(self, *args: Any) -> None:
        raise RuntimeError(f"{self._title} is described and not here: nothing can run on it")
