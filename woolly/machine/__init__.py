"""Hardware and operating system: cores, memory, processes and other load."""

__all__: list[str] = []
