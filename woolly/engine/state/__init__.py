"""Cache state of requests: sliding windows and recurrent snapshots."""

__all__: list[str] = []
