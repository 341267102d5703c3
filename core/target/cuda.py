"""CUDA targets: the GPU here, or one that a description stands for."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch

from graphkiln.core.errors import NoDevice
from graphkiln.core.target.apart import apart, clause
from graphkiln.core.target.attention import live_attention
from graphkiln.core.target.description import Description, DeviceProperties, Versions
from graphkiln.core.target.torch_build import ptxas_text, torch_sources

# Of the properties, what Inductor's heuristics and Triton's limits read: it decides code.
_IN_KEY = (
    "name", "major", "minor", "multi_processor_count", "warp_size", "regs_per_multiprocessor",
    "max_threads_per_multi_processor", "max_threads_per_block", "shared_memory_per_block_optin",
)  # fmt: skip


@dataclass(frozen=True)
class CudaTarget:
    """A GPU as a target; `described` when it is not here."""

    device: DeviceProperties
    toolkit: str
    title: str
    described: Description | None = None

    @property
    def kind(self) -> Literal["cuda"]:
        """The kind of device."""
        return "cuda"

    @property
    def torch_device(self) -> torch.device:
        """Where a model for it lies in this process: on the current device."""
        return torch.device("cuda", torch.cuda.current_device() if torch.cuda.is_available() else 0)

    @property
    def name(self) -> str:
        """How a person writes it."""
        return self.title

    @property
    def capability(self) -> int:
        """The compute capability as one number: 90 for 9.0."""
        return self.device.major * 10 + self.device.minor

    @property
    def features(self) -> tuple[str, ...]:
        """The CPU features that its code needs: none."""
        return ()

    def as_factor(self) -> dict[str, Any]:
        """What of it belongs to the compiler factor: the same for a device here and for its description.

        `gpu` is the device's own name; `name` is how a person asked for the target, and no fact of it.
        """
        values = asdict(self.device)
        facts = {"gpu" if name == "name" else name: values[name] for name in _IN_KEY}
        return {"device": "cuda", "toolkit": self.toolkit, **facts}

    def missing_here(self) -> tuple[str, ...]:
        """Returns what code for this target needs and the device here is not, as clauses."""
        if not torch.cuda.is_available():
            return ("a CUDA device",)
        wanted, live = ({"target": one} for one in (self.as_factor(), live_target().as_factor()))
        return tuple(f"{clause(fact.name, fact.then)} (here {fact.now})" for fact in apart(wanted, live))


def live_target(title: str | None = None) -> CudaTarget:
    """Returns the current CUDA device as a target. Raises NoDevice where there is none."""
    if not torch.cuda.is_available():
        raise NoDevice(
            f"target {title or 'cuda'}",
            "there is no CUDA device here",
            "name a description to compile for one that is not here: graphkiln target list",
        )
    return CudaTarget(live_properties(), str(torch.version.cuda), title or "cuda")


def describe_live() -> Description:
    """Returns the description of the current CUDA device. Raises NoDevice where there is none."""
    live = live_target()
    return Description("here", live.device, live_versions(), "captured", attention=live_attention())


def live_properties() -> DeviceProperties:
    """Returns what torch says of the current CUDA device."""
    here = torch.cuda.get_device_properties(torch.cuda.current_device())
    return DeviceProperties(**{name: getattr(here, name) for name in DeviceProperties.__dataclass_fields__})


def live_versions() -> Versions:
    """Returns what the current CUDA device is used with."""
    import platform
    from importlib import metadata

    major, minor, _ = platform.python_version_tuple()
    try:
        triton = metadata.version("triton")
    except metadata.PackageNotFoundError:
        triton = None
    return Versions(
        torch=str(torch.__version__),
        torch_sources=torch_sources(),
        cuda=str(torch.version.cuda),
        triton=triton,
        ptxas=ptxas_text(),
        python=f"{major}.{minor}",
    )
