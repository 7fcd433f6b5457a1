"""Backends, which compile a plan into a program and run it."""

from typing import TYPE_CHECKING

from woolly.lazy_imports import lazy_getattr
from woolly.runtime.backends import BACKENDS, find_gpu_backend, get_backend, plan_placement

if TYPE_CHECKING:
    from woolly.runtime.arithmetic_version import ARITHMETIC_VERSION
    from woolly.runtime.batch import Batch
    from woolly.runtime.device_share import DeviceShare
    from woolly.runtime.devices import GPU_KINDS, TOWER_KINDS, backend_for, is_gpu_backend, parse_devices
    from woolly.runtime.gpu.backend import GpuBackend
    from woolly.runtime.gpu.gpu_info import Gpu
    from woolly.runtime.gpu_discovery import find_gpu, name_gpus
    from woolly.runtime.options import (
        KV_TYPES,
        Options,
        check_kv_type,
        kv_types_of,
        parse_layers,
        parse_max_running,
        parse_size,
    )
    from woolly.runtime.program import (
        About,
        Advances,
        Backend,
        CancelledRun,
        DraftProgram,
        LostState,
        Program,
        SplitsRows,
        WeightStats,
    )
    from woolly.runtime.split import Placement, SplitState, cpu_expert_bytes
    from woolly.runtime.stage_addresses import Stages, read_token
    from woolly.runtime.state import PAGE_SIZE, PortableState, State, pages_for
    from woolly.runtime.top_logits import (
        MAX_RANKED,
        PICK,
        AsyncRanks,
        NextStep,
        OverwrittenRows,
        Ranking,
        Ranks,
        as_async_ranks,
        as_ranks,
    )

__all__ = [
    "ARITHMETIC_VERSION",
    "BACKENDS",
    "GPU_KINDS",
    "KV_TYPES",
    "MAX_RANKED",
    "PAGE_SIZE",
    "PICK",
    "TOWER_KINDS",
    "About",
    "Advances",
    "AsyncRanks",
    "Backend",
    "Batch",
    "CancelledRun",
    "DeviceShare",
    "DraftProgram",
    "Gpu",
    "GpuBackend",
    "LostState",
    "NextStep",
    "Options",
    "OverwrittenRows",
    "Placement",
    "PortableState",
    "Program",
    "Ranking",
    "Ranks",
    "SplitState",
    "SplitsRows",
    "Stages",
    "State",
    "WeightStats",
    "as_async_ranks",
    "as_ranks",
    "backend_for",
    "check_kv_type",
    "cpu_expert_bytes",
    "find_gpu",
    "find_gpu_backend",
    "get_backend",
    "is_gpu_backend",
    "kv_types_of",
    "name_gpus",
    "pages_for",
    "parse_devices",
    "parse_layers",
    "parse_max_running",
    "parse_size",
    "plan_placement",
    "read_token",
]

__getattr__ = lazy_getattr(
    __name__,
    {
        "arithmetic_version": "ARITHMETIC_VERSION",
        "batch": "Batch",
        "devices": "GPU_KINDS TOWER_KINDS backend_for is_gpu_backend parse_devices",
        "gpu.backend": "GpuBackend",
        "gpu.gpu_info": "Gpu",
        "gpu_discovery": "find_gpu name_gpus",
        "options": "KV_TYPES Options check_kv_type kv_types_of parse_max_running parse_layers parse_size",
        "program": "About Advances Backend CancelledRun SplitsRows DraftProgram LostState Program WeightStats",
        "top_logits": "MAX_RANKED PICK NextStep OverwrittenRows Ranking Ranks AsyncRanks as_ranks as_async_ranks",
        "device_share": "DeviceShare",
        "split": "Placement SplitState cpu_expert_bytes",
        "stage_addresses": "Stages read_token",
        "state": "PAGE_SIZE PortableState State pages_for",
    },
)
