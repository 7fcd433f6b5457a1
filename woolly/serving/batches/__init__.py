"""Batches of requests from a file, shared by `woolly batch` and /v1/batches."""

from woolly.serving.batches.job import Job, Tally
from woolly.serving.batches.journal import Journal
from woolly.serving.batches.rows import ENDPOINTS, BatchRow, read_row

__all__ = ["ENDPOINTS", "BatchRow", "Job", "Journal", "Tally", "read_row"]
