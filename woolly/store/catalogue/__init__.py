"""What is known without asking: names that people type with the repositories they mean, and forms of model files."""

__all__: list[str] = []
