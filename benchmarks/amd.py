"""Instructions and registers of the Vulkan kernels on AMD GPUs, from Mesa's compiler, without such a GPU.

    python benchmarks/amd.py [PREFIX ...] [--family navi21]

It needs Mesa's driver for Radeon (Debian: mesa-vulkan-drivers), which compiles for a GPU that is not there: vega10,
navi10, navi21 and, of newer Mesa, navi31. Names of kernels begin with a PREFIX. `latency` and `inverse throughput` are
the compiler's own estimates in clocks: they rank two versions of a kernel, no more.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

FIGURES = ("VGPRs", "Spilled VGPRs", "LDS size", "Code size", "Latency", "Inverse Throughput")
_MARK = "kernel of woolly: "


def manifest() -> Path | None:
    """The driver's manifest for the loader of Vulkan; None if it is not installed."""
    for folder in ("/usr/share/vulkan/icd.d", "/usr/local/share/vulkan/icd.d", "/etc/vulkan/icd.d"):
        for found in sorted(Path(folder).glob("radeon_icd*.json")):
            return found
    return None


def compile_here(prefixes: tuple[str, ...]) -> None:
    """Has the driver of this process compile kernels; it prints what each takes to standard error."""
    from woolly.runtime.vulkan.context import VulkanContext
    from woolly.runtime.vulkan.cooperative_matrix import KERNELS
    from woolly.runtime.vulkan.kernel_archive import SpirvArchive
    from woolly.runtime.vulkan.libvulkan import open_driver
    from woolly.runtime.vulkan.physical_device import find_physical

    driver, archive = open_driver(), SpirvArchive()
    context = VulkanContext(driver, find_physical(driver, 0), archive)
    context.converts_halves = True  # as AMD's GPUs do
    for name in archive.names("plain"):
        if name.startswith(prefixes) and name not in KERNELS:
            os.write(2, f"{_MARK}{name}\n".encode())
            context.pipeline(name)
    os._exit(0)  # without an end of the driver: there is no GPU to end


def figures(text: str) -> dict[str, dict[str, int]]:
    """The figures of each kernel in what the driver printed."""
    found: dict[str, dict[str, int]] = {}
    for part in text.split(_MARK)[1:]:
        name, _, rest = part.partition("\n")
        known = {key.strip(): int(n) for key, n in re.findall(r"^([A-Z][\w -]*): (\d+)", rest, re.M)}
        found[name] = {key: known[key] for key in FIGURES if key in known}
    return found


def main() -> int:
    """Prints a table; 1 if the driver is not there or compiles nothing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prefixes", nargs="*", metavar="PREFIX", help="of names of kernels; none: all")
    parser.add_argument("--family", default="navi21", help="of GPUs (navi21)")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        compile_here(tuple(options.prefixes) or ("",))
    if (driver := manifest()) is None:
        print("Mesa's driver for Radeon is not here: apt-get install mesa-vulkan-drivers", file=sys.stderr)
        return 1
    env = {"RADV_FORCE_FAMILY": options.family, "RADV_DEBUG": "shaderstats,nocache"}
    env |= {"VK_ICD_FILENAMES": str(driver), "VK_DRIVER_FILES": str(driver)}
    words = [sys.executable, __file__, "--here", *options.prefixes]
    done = subprocess.run(words, env={**os.environ, **env}, capture_output=True, text=True, check=False)
    if not (found := figures(done.stdout + done.stderr)):
        print(f"nothing was compiled for {options.family}: {done.stderr.strip()[-300:]}", file=sys.stderr)
        return 1
    width = max(map(len, found))
    print(f"{'':{width}}", *(f"{key.lower():>18}" for key in FIGURES))
    for name, known in found.items():
        print(f"{name:{width}}", *(f"{known.get(key, '-'):>18}" for key in FIGURES))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
