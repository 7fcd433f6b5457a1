"""First run: models that this machine can run, and next steps."""

__all__: list[str] = []
