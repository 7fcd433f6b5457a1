# Sourced by scripts/run and scripts/test. set_up creates .venv in the project root and installs Woolly into it.
# POSIX sh. Messages go to stderr, because stdout is for the answers of Woolly.
#
# .venv/woolly-stamp describes the installation, one fact per line: run or test, the project root, the base Python of
# .venv, a checksum of pyproject.toml and native/, whether there is an NVIDIA GPU, a checksum of the CPU's features, and
# WOOLLY_LEVELS. Kernels are compiled for this machine. If the stamp matches, nothing is installed. run and test share
# one build; test installs more packages.

root=$(CDPATH='' cd -- "$(dirname -- "$(readlink -f -- "$0" 2>/dev/null || echo "$0")")/.." && pwd -P)
venv=$root/.venv
stamp=$venv/woolly-stamp
fetched=$venv/woolly-packages.log  # output of pip for the dependencies of Woolly
unfinished=$venv/woolly-unfinished # exists while pip runs, so that an interrupted installation is not reused

# An activated environment, or settings for another Python, must not affect .venv.
unset PYTHONHOME PYTHONPATH VIRTUAL_ENV PIP_TARGET PIP_PREFIX PIP_PYTHON
export PIP_USER=0
# Compiling all files of all packages takes 12 s; Python compiles and caches imported modules anyway. --no-compile would
# not reach the pip that installs the build requirements.
export PIP_COMPILE=0
# Containers often set this. Every start of Woolly would then compile its modules again, which takes over half a second.
unset PYTHONDONTWRITEBYTECODE

say() {
    printf 'woolly: %s\n' "$*" >&2
}

die() {
    say "error: $*"
    exit 1
}

set_up() { # set_up run|test
    kind=$1
    if is_current; then return; fi

    # Concurrent starts wait for each other. This file is the lock, because it always exists.
    exec 9<"$root/scripts/setup.sh"
    if command -v flock >/dev/null; then flock 9 || true; fi
    if ! is_current; then
        case $(stamp_line 1) in test) kind=test ;; esac # keep the packages for tests
        [ -w "$root" ] || die "$root is not writable, but .venv is created there"
        find_python
        find_tools
        make_venv
        install
    fi
    exec 9<&-
}

# ---------------------------------------------------------------------------------------------------- stamp

stamp_line() {
    [ ! -f "$stamp" ] || sed -n "$1p" "$stamp"
}

place() {
    printf '%s\n' "$root"
    readlink -f -- "$venv/bin/python" 2>/dev/null || true # macOS has -f since 12.3
}

sources() {
    (cd -- "$root" && find pyproject.toml native -name __pycache__ -prune -o -type f -exec cksum {} + | LC_ALL=C sort | cksum)
}

machine() {
    if command -v nvidia-smi >/dev/null; then echo "a GPU"; else echo "no GPU"; fi
    sed -n '/^flags\|^Features/{p;q;}' /proc/cpuinfo 2>/dev/null | cksum
    printf '%s %s\n' "${WOOLLY_LEVELS:-own}" "${WOOLLY_CUDA_TARGETS:-none}"
}

facts() {
    place && sources && machine
}

is_built() {
    [ -x "$venv/bin/python" ] && [ -x "$venv/bin/woolly" ] && [ -f "$stamp" ] && [ ! -e "$unfinished" ] || return 1
    # `pip install .` installs a copy, which does not follow changes of the sources.
    for copied in "$venv"/lib/python*/site-packages/woolly/__init__.py; do [ ! -e "$copied" ] || return 1; done
    [ "$(sed 1d "$stamp")" = "$(facts)" ]
}

is_current() {
    is_built || return 1
    case $(stamp_line 1) in "$kind" | test) return 0 ;; esac
    return 1
}

# ----------------------------------------------------------------------------------------- system packages

find_python() {
    # .venv may be the activated environment, and may be removed below.
    PATH=$(printf '%s\n' "$PATH" | tr ':' '\n' | grep -Fxv -- "$venv/bin" | paste -sd: -)
    python=
    for candidate in python3 python3.14 python3.13 python3.12 python3.11 python3.10; do
        # If another environment is activated, use its base Python, so that .venv does not depend on that environment.
        python=$("$candidate" -c 'import sys
sys.version_info >= (3, 10) and print(getattr(sys, "_base_executable", "") or sys.executable)' 2>/dev/null) || true
        [ -z "$python" ] || return 0
    done
    if command -v python3 >/dev/null; then
        die "Python 3.10 or newer is required, but this is $(python3 -V 2>&1): install a newer python3"
    fi
    if is_macos; then die "Python 3.10 or newer is required: install it with: brew install python3"; fi
    die "Python 3.10 or newer is required: install it with: sudo apt-get install python3"
}

find_tools() {
    find_browser
    find_vulkan
    missing
    [ -n "$packages" ] || return 0
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        say "installing$packages with apt-get"
        export DEBIAN_FRONTEND=noninteractive
        quietly apt-get update || true # an old package index may be sufficient; the check below names missing packages
        # shellcheck disable=SC2086 # a list of words
        quietly apt-get install -y --no-install-recommends $packages ||
            die "apt-get could not install$packages: see above"
        missing
        [ -z "$packages" ] || die "the system packages do not provide $names for $python: install them manually"
    elif command -v apt-get >/dev/null; then
        die "missing $names: install with: sudo apt-get install -y$packages"
    elif is_macos; then
        # On macOS, the compiler and Python come from different installers.
        case $packages in *g++*) command="xcode-select --install" ;; *) command="brew install python3" ;; esac
        die "missing $names: install with: $command"
    else
        die "missing $names: install with the package manager of this system"
    fi
}

is_macos() {
    [ "$(uname)" = Darwin ]
}

# The tests of the vulkan backend need a Vulkan device, which may be the CPU; otherwise they are skipped.
find_vulkan() {
    if [ "$kind" != test ] || [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then return 0; fi
    if ls /usr/share/vulkan/icd.d/*.json >/dev/null 2>&1; then return 0; fi
    say "installing mesa-vulkan-drivers with apt-get, for the tests of the vulkan backend"
    export DEBIAN_FRONTEND=noninteractive
    quietly apt-get update || true
    quietly apt-get install -y --no-install-recommends mesa-vulkan-drivers libvulkan1 ||
        say "mesa-vulkan-drivers could not be installed: the tests of the vulkan backend are skipped"
}

# The tests of the web page need a browser; otherwise they are skipped.
find_browser() {
    if [ "$kind" != test ] || command -v chromium >/dev/null; then return 0; fi
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then return 0; fi
    say "installing chromium with apt-get, for the tests of the web page"
    export DEBIAN_FRONTEND=noninteractive
    quietly apt-get update || true
    quietly apt-get install -y --no-install-recommends chromium fonts-dejavu-core ||
        say "chromium could not be installed: the tests of the web page are skipped"
}

# Sets `packages` (Debian names) and `names` (for messages) of missing packages.
missing() {
    packages= names=
    python_package=python3
    case $python in
        /usr/bin/python3.*) [ "$(readlink -f /usr/bin/python3)" = "$python" ] || python_package=${python##*/} ;;
    esac
    find_compiler || lack g++ "a C++20 compiler (g++ 10 or newer)"
    "$python" -c 'import sysconfig; open(sysconfig.get_paths()["include"] + "/Python.h").close()' 2>/dev/null ||
        lack "$python_package-dev" "the headers of Python (Python.h)"
    # Debian's venv may lack ensurepip, and would then fail halfway.
    "$python" -c 'import ensurepip, venv; ensurepip.version()' 2>/dev/null ||
        lack "$python_package-venv" "the venv module of Python"
}

lack() {
    packages="$packages $1"
    names=${names:+$names, }$2
}

find_compiler() {
    for candidate in ${CXX:-c++ g++ clang++ g++-14 g++-13 g++-12 g++-11 g++-10}; do
        if printf '#include <bit>\n#include <concepts>\n#include <span>\nint main() {}\n' |
            "$candidate" -std=c++20 -x c++ -fsyntax-only - >/dev/null 2>&1; then
            export CXX="$candidate"
            return 0
        fi
    done
    return 1
}

# ------------------------------------------------------------------------------------------------------- .venv

make_venv() {
    if [ -e "$stamp" ] && [ "$(stamp_line 2; stamp_line 3)" != "$(place)" ]; then
        : # the project was moved or Python was replaced, so the scripts in .venv/bin are broken
    elif [ ! -e "$unfinished" ] && "$venv/bin/python" -c 'import pip, sys
sys.exit(sys.version_info < (3, 10) or sys.prefix == sys.base_prefix)' 2>/dev/null; then
        return 0
    fi
    say "creating a virtual environment in .venv"
    rm -rf -- "$venv"
    mkdir -- "$venv"
    : >"$unfinished"
    quietly make_venv_with_pip || die "the virtual environment could not be created: see above"
}

# Unpacks the pip that comes with Python. venv would run pip to install itself and compile all files of pip and
# setuptools, which takes 9 s.
make_venv_with_pip() {
    "$python" -m venv --without-pip "$venv" || return 1
    "$venv/bin/python" -c 'import ensurepip, shlex, sys, sysconfig, zipfile
from pathlib import Path
name = f"pip-{ensurepip.version()}-py3-none-any.whl"
folders = [sysconfig.get_config_var("WHEEL_PKG_DIR") or "", Path(ensurepip.__file__).with_name("_bundled")]
wheel = next(path for path in (Path(folder, name) for folder in folders) if path.is_file())
zipfile.ZipFile(wheel).extractall(sysconfig.get_path("purelib"))
command = Path(sys.executable).with_name("pip")
command.write_text(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} -m pip \"$@\"\n")
command.chmod(0o755)' || "$venv/bin/python" -m ensurepip --default-pip
}

install() {
    if ! is_built; then
        say "installing Woolly and compiling its native module for this machine"
        : >"$unfinished"
        rm -f -- "$stamp"
        built=$(facts) # before the build, so that a file edited meanwhile is built at the next start
        quietly in_root build || failed
        [ -x "$venv/bin/woolly" ] || die "the installation created no command in .venv/bin: remove .venv and try again"
        make_gpu_kernels # before the stamp, so that an interrupted build starts again
        write_stamp run
    fi
    [ "$kind" = test ] || return 0
    say "installing packages for the tests"
    built=$(sed 1d "$stamp")
    : >"$unfinished"
    # '.[test]' would build again.
    name=$(sed -n 's/^name = "\(.*\)"/\1/p' "$root/pyproject.toml")
    "$venv/bin/python" -c 'import sys
from importlib.metadata import requires
from pip._vendor.packaging.requirements import Requirement
for line in requires(sys.argv[1]):
    need = Requirement(line)
    if need.marker and need.marker.evaluate({"extra": "test"}) and not need.marker.evaluate({"extra": ""}):
        need.marker = None
        print(need)' "$name" >"$venv/woolly-test-packages"
    in_venv_pip install --requirement "$venv/woolly-test-packages"
    write_stamp test
}

# Compiles Woolly and downloads its dependencies at the same time; the download alone takes 25 s.
build() {
    rm -f -- "$fetched" # of an interrupted start
    needs >"$venv/woolly-packages" || return 1
    fetching=
    if [ -s "$venv/woolly-packages" ]; then
        "$venv/bin/python" -m pip --disable-pip-version-check install --requirement "$venv/woolly-packages" \
            >"$fetched" 2>&1 9<&- &
        fetching=$!
        trap 'kill "$fetching" 2>/dev/null; exit 130' HUP INT TERM # background processes do not receive Ctrl-C
    fi
    status=0
    pip --verbose install --no-deps --editable . || status=$? # verbose: shows ninja's progress
    if [ -n "$fetching" ]; then
        # Show compiler errors last and immediately; the next start can download packages.
        [ "$status" = 0 ] || kill "$fetching" 2>/dev/null || true
        wait "$fetching" 2>/dev/null || { [ "$status" != 0 ] || cat "$fetched"; status=1; }
    fi
    rm -f -- "$fetched"
    return "$status"
}

# GPUs without CUDA use Vulkan, whose kernels are compiled in a clone: 90 s on two cores, with a downloaded compiler.
# Other machines skip this step. If it fails, the CPU computes the same answers. scripts/test always compiles them.
make_gpu_kernels() {
    if [ "$kind" = test ] || [ "$("$venv/bin/python" "$root/native/gpu/wanted.py" 2>/dev/null)" != yes ]; then return 0; fi
    say "compiling kernels for this machine's GPU, which takes minutes and downloads 92 MB"
    quietly in_root compile_gpu_kernels ||
        say "the kernels for the GPU could not be compiled; the CPU is used instead: see docs/use/gpus.md"
}

compile_gpu_kernels() {
    pip install "$(sed -n "s/.*\"\(slangpy[^;\"]*\).*/\1/p" pyproject.toml)" && "$venv/bin/python" native/gpu/compile.py --missing
}

# Prints the dependencies of Woolly, and of its tests if requested. The compiler of CUDA kernels (92 MB) is installed only
# on machines with an NVIDIA GPU.
needs() {
    set --
    if command -v nvidia-smi >/dev/null; then set -- cuda; fi
    if [ "$kind" = test ]; then set -- "$@" test; fi
    "$venv/bin/python" -c 'import sys
try:
    import tomllib
except ImportError:  # Python 3.10
    from pip._vendor import tomli as tomllib
with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
print(*project["dependencies"], *(one for extra in sys.argv[1:] for one in project["optional-dependencies"][extra]), sep="\n")' "$@"
}

pip() { # pip ARGUMENTS...
    "$venv/bin/python" -m pip --disable-pip-version-check "$@"
}

in_venv_pip() { # in_venv_pip ARGUMENTS...
    quietly in_root pip "$@" || failed
}

failed() {
    rm -f -- "$unfinished" # pip ended by itself, so .venv is consistent
    die "the installation failed: see above"
}

write_stamp() { # write_stamp run|test
    printf '%s\n%s\n' "$1" "$built" >"$stamp"
    rm -f -- "$unfinished"
}

in_root() {
    (cd -- "$root" && "$@")
}

# Runs a command without showing its output, except for the last lines if the command fails.
quietly() {
    log=$(mktemp)
    watch_log &
    watcher=$!
    trap 'kill "$watcher" || true; rm -f -- "$log"; stopped; exit 130' INT TERM
    status=0
    # In a subshell, so that the output of the trap is shown.
    ("$@") >"$log" 2>&1 </dev/null || status=$?
    kill "$watcher" 2>/dev/null || true
    wait "$watcher" 2>/dev/null || true
    [ ! -t 2 ] || printf '\r\033[K' >&2
    [ "$status" = 0 ] || tail -n 40 "$log" >&2
    rm -f -- "$log"
    trap - INT TERM
    return "$status"
}

stopped() {
    [ ! -t 2 ] || printf '\r\033[K' >&2
    say "stopped: the next start continues with the files compiled so far"
}

# Shows progress: on a terminal in one line that is overwritten, otherwise in a line every ten seconds. Ninja writes
# [compiled files/all files].
watch_log() {
    every=10 began=$(date +%s) first=
    [ ! -t 2 ] || every=2
    # The sleep must not keep the output or the lock open after this function is killed.
    while sleep "$every" >/dev/null 2>&1 9<&-; do
        now=$(date +%s)
        # Output of pip before the first file is compiled.
        doing=$(cat -- "$fetched" "$log" 2>/dev/null | sed -n 's/^ *Collecting \([A-Za-z0-9_.-]*\).*/downloading \1/p
s/^ *Building editable.*/preparing to compile/p
s/.*Building project with.*/compiling the first files/p' | tail -n 1)
        counts=$(sed -n 's/^ *\[\([0-9]*\)\/\([0-9]*\)\] Building .*/\1 \2/p' "$log" | tail -n 1)
        ! grep -q '^ *Successfully installed woolly' "$log" || counts= # still downloading packages
        at=${counts% *} all=${counts#* }
        if [ -z "$counts" ]; then
            text="working for $((now - began)) s${doing:+: $doing}"
        else
            text="compiling: $at of $all files"
            [ -n "$first" ] || first=$((now - every))
            # The longest files come first, so this estimate is an upper bound once they are compiled.
            [ "$at" -lt 4 ] || text="$text, about $(((now - first) * (all - at) / at + 1)) s left"
        fi
        if [ -t 2 ]; then printf '\r\033[Kwoolly: %s' "$text" >&2; else say "$text"; fi
    done
}
