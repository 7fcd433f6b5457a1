"""Accounts: API keys, their quotas and their usage."""

__all__: list[str] = []
