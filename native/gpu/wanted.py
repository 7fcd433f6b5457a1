"""Checks for a GPU that an installed Woolly would use by default if its kernels were compiled.

python native/gpu/wanted.py     # yes or no
"""

from __future__ import annotations

from woolly.errors import DeviceError, RequestError
from woolly.runtime.backends import BACKENDS
from woolly.runtime.vulkan.auto_selection import find_level


def are_kernels_wanted() -> bool:
    """Return True if the GPU selected by `auto` only lacks compiled kernels."""
    try:
        find_level()
    except (DeviceError, RequestError) as error:  # RequestError: a driver without a GPU
        return error.code == "no_kernels" and not BACKENDS["cuda"]().is_available()
    return False


if __name__ == "__main__":
    print("yes" if are_kernels_wanted() else "no")
