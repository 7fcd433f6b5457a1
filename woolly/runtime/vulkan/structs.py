"""Vulkan structs for ctypes, named as in the specification without prefix."""

from __future__ import annotations

import ctypes as c
from typing import Any

_P, _U32, _U64 = c.c_void_p, c.c_uint32, c.c_uint64


def _struct(name: str, *fields: tuple[str, Any], s_type: int | None = None) -> Any:
    """Define a struct. With `s_type` it starts with sType (filled in) and pNext."""
    head = [] if s_type is None else [("sType", _U32), ("pNext", _P)]
    made: Any = type(name, (c.Structure,), {"_fields_": [*head, *fields]})
    if s_type is None:
        return made

    def make(*values: Any, next: Any = None) -> Any:
        return made(s_type, next, *values)

    return make


def reference(one: Any) -> Any:
    """Return the address of a struct, or None. The caller keeps the struct alive."""
    return None if one is None else c.cast(c.pointer(one), _P)


AppInfo = _struct(
    "AppInfo", ("name", c.c_char_p), ("version", _U32), ("engine", c.c_char_p), ("of_engine", _U32), ("api", _U32),
    s_type=0,
)  # fmt: skip
InstanceInfo = _struct(
    "InstanceInfo", ("flags", _U32), ("app", _P), ("n_layers", _U32), ("layers", _P), ("n_extensions", _U32),
    ("extensions", _P), s_type=1,
)  # fmt: skip
QueueInfo = _struct("QueueInfo", ("flags", _U32), ("family", _U32), ("n", _U32), ("priorities", _P), s_type=2)
DeviceInfo = _struct(
    "DeviceInfo", ("flags", _U32), ("n_queues", _U32), ("queues", _P), ("n_layers", _U32), ("layers", _P),
    ("n_extensions", _U32), ("extensions", _P), ("features", _P), s_type=3,
)  # fmt: skip
QueueFamily = _struct("QueueFamily", ("flags", _U32), ("count", _U32), ("bits", _U32), ("granularity", _U32 * 3))
_MemoryType = _struct("MemoryType", ("flags", _U32), ("heap", _U32))
_MemoryHeap = _struct("MemoryHeap", ("size", _U64), ("flags", _U32))
MemoryProperties = _struct(
    "MemoryProperties", ("n_types", _U32), ("types", _MemoryType * 32), ("n_heaps", _U32), ("heaps", _MemoryHeap * 16)
)
MemoryProperties2 = _struct("MemoryProperties2", ("properties", MemoryProperties), s_type=1000059006)
MemoryBudget = _struct("MemoryBudget", ("budget", _U64 * 16), ("usage", _U64 * 16), s_type=1000237000)
BufferInfo = _struct(
    "BufferInfo", ("flags", _U32), ("size", _U64), ("usage", _U32), ("sharing", _U32), ("n", _U32), ("families", _P),
    s_type=12,
)  # fmt: skip
Requirements = _struct("Requirements", ("size", _U64), ("alignment", _U64), ("types", _U32))
AllocateInfo = _struct("AllocateInfo", ("size", _U64), ("type", _U32), s_type=5)
AllocateFlags = _struct("AllocateFlags", ("flags", _U32), ("mask", _U32), s_type=1000060000)
AddressInfo = _struct("AddressInfo", ("buffer", _P), s_type=1000244001)
ModuleInfo = _struct("ModuleInfo", ("flags", _U32), ("size", c.c_size_t), ("code", _P), s_type=15)
PushRange = _struct("PushRange", ("stages", _U32), ("offset", _U32), ("size", _U32))
LayoutInfo = _struct(
    "LayoutInfo", ("flags", _U32), ("n_sets", _U32), ("sets", _P), ("n_pushes", _U32), ("pushes", _P), s_type=30
)
_ConstantPlace = _struct("ConstantPlace", ("id", _U32), ("offset", _U32), ("size", c.c_size_t))
_Constants = _struct("Constants", ("n", _U32), ("places", _P), ("size", c.c_size_t), ("data", _P))
_Stage = type(
    "Stage",
    (c.Structure,),
    {
        "_fields_": [
            ("sType", _U32), ("pNext", _P), ("flags", _U32), ("stage", _U32), ("module", _P), ("name", c.c_char_p),
            ("constants", _P),
        ]
    },
)  # fmt: skip


def constants(*values: int) -> Any:
    """Return specialization constants: 32 bits each, with ids from 0."""
    places = (_ConstantPlace * len(values))(*(_ConstantPlace(i, 4 * i, 4) for i in range(len(values))))
    data = (c.c_uint32 * len(values))(*values)
    return _Constants(len(values), c.cast(places, _P), c.sizeof(data), c.cast(data, _P))


def StageInfo(*values: Any) -> Any:  # noqa: N802 - named like the structs above
    """Return VkPipelineShaderStageCreateInfo: flags, stage, module, name, constants."""
    return _Stage(18, None, *values)


PipelineInfo = _struct(
    "PipelineInfo", ("flags", _U32), ("stage", _Stage), ("layout", _P), ("base", _P), ("index", c.c_int32), s_type=29
)
CacheInfo = _struct("CacheInfo", ("flags", _U32), ("size", c.c_size_t), ("data", _P), s_type=17)
PoolInfo = _struct("PoolInfo", ("flags", _U32), ("family", _U32), s_type=39)
CommandInfo = _struct("CommandInfo", ("pool", _P), ("level", _U32), ("n", _U32), s_type=40)
BeginInfo = _struct("BeginInfo", ("flags", _U32), ("inherited", _P), s_type=42)
Barrier = _struct("Barrier", ("before", _U32), ("after", _U32), s_type=46)
BufferCopy = _struct("BufferCopy", ("source", _U64), ("target", _U64), ("size", _U64))
QueryInfo = _struct("QueryInfo", ("flags", _U32), ("type", _U32), ("n", _U32), ("statistics", _U32), s_type=11)
Submit = _struct(
    "Submit", ("n_waits", _U32), ("waits", _P), ("stages", _P), ("n", _U32), ("commands", _P), ("n_signals", _U32),
    ("signals", _P), s_type=4,
)  # fmt: skip
TimelineSubmit = _struct(
    "TimelineSubmit", ("n_waits", _U32), ("waits", _P), ("n_signals", _U32), ("signals", _P), s_type=1000207003
)
SemaphoreType = _struct("SemaphoreType", ("type", _U32), ("value", _U64), s_type=1000207002)
SemaphoreInfo = _struct("SemaphoreInfo", ("flags", _U32), s_type=9)
WaitInfo = _struct("WaitInfo", ("flags", _U32), ("n", _U32), ("semaphores", _P), ("values", _P), s_type=1000207004)


MatrixProperties = _struct("MatrixProperties", ("numbers", _U32 * 9), s_type=1000506001)


def FeaturesInfo(s_type: int, bits: Any, next: Any) -> Any:  # noqa: N802 - named like the structs above
    """Return a feature struct with one 32-bit field per feature."""
    kind: Any = _struct("Features", ("bits", type(bits)), s_type=s_type)
    return kind(bits, next=next)
