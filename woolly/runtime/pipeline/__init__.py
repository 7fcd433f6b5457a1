"""Pipeline parallelism: a program with parts in other processes."""

from woolly.runtime.pipeline.program import PipelineBackend, PipelineProgram, PipelineState

__all__ = ["PipelineBackend", "PipelineProgram", "PipelineState"]
