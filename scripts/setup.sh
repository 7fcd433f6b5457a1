# Sourced by scripts/run and scripts/test: set_up makes .venv in the project root and installs Woolly into it.
# Plain POSIX sh. What it says goes to stderr; the answers of Woolly have stdout for themselves.
#
# .venv/woolly-stamp says what was installed, one fact per line: run or test, then what the build depends on: the project
# root, the Python under .venv, a checksum of pyproject.toml and native/, whether there is an NVIDIA GPU, a checksum of
# what the CPU can, and WOOLLY_LEVELS: kernels are compiled for the machine that is there. A start that finds its own
# facts there installs nothing. run and test share one build; test installs packages beside it.

root=$(CDPATH='' cd -- "$(dirname -- "$(readlink -f -- "$0" 2>/dev/null || echo "$0")")/.." && pwd -P)
venv=$root/.venv
stamp=$venv/woolly-stamp
fetched=$venv/woolly-packages.log  # what pip says of the packages that Woolly depends on
unfinished=$venv/woolly-unfinished # there while pip works: a start that was killed is not built upon

# An activated environment, or settings for another Python, must not reach into .venv.
unset PYTHONHOME PYTHONPATH VIRTUAL_ENV PIP_TARGET PIP_PREFIX PIP_PYTHON
export PIP_USER=0
# Python compiles what it imports, and keeps that: to compile all files of all packages takes 12 s. Not --no-compile, which
# the pip that fetches what the build needs is not given.
export PIP_COMPILE=0
# Containers often set this; each start of Woolly would then compile all its files again, for half a second or more.
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

    # Two starts at once take turns. This file is the lock, because it always exists.
    exec 9<"$root/scripts/setup.sh"
    if command -v flock >/dev/null; then flock 9 || true; fi
    if ! is_current; then
        case $(stamp_line 1) in test) kind=test ;; esac # what the tests need stays installed
        [ -w "$root" ] || die "$root cannot be written: .venv is made there"
        find_python
        find_tools
        make_venv
        install
    fi
    exec 9<&-
}

# ---------------------------------------------------------------------------------------------------- the stamp

stamp_line() {
    [ ! -f "$stamp" ] || sed -n "$1p" "$stamp"
}

place() {
    printf '%s\n' "$root"
    readlink -f -- "$venv/bin/python" 2>/dev/null || true # macOS knows -f from 12.3 on
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
    # What `pip install .` leaves here is a copy, which no change of the sources reaches.
    for copied in "$venv"/lib/python*/site-packages/woolly/__init__.py; do [ ! -e "$copied" ] || return 1; done
    [ "$(sed 1d "$stamp")" = "$(facts)" ]
}

is_current() {
    is_built || return 1
    case $(stamp_line 1) in "$kind" | test) return 0 ;; esac
    return 1
}

# ----------------------------------------------------------------------------------------- what the system gives

find_python() {
    # .venv may be the activated environment, and about to be removed.
    PATH=$(printf '%s\n' "$PATH" | tr ':' '\n' | grep -Fxv -- "$venv/bin" | paste -sd: -)
    python=
    for candidate in python3 python3.14 python3.13 python3.12 python3.11 python3.10; do
        # If another environment is activated, take the Python under it: .venv must not depend on that environment.
        python=$("$candidate" -c 'import sys
sys.version_info >= (3, 10) and print(getattr(sys, "_base_executable", "") or sys.executable)' 2>/dev/null) || true
        [ -z "$python" ] || return 0
    done
    if command -v python3 >/dev/null; then
        die "Python 3.10 or newer is needed and $(python3 -V 2>&1) is here: install a newer python3"
    fi
    if is_macos; then die "Python 3.10 or newer is needed: install it with: brew install python3"; fi
    die "Python 3.10 or newer is needed: install it with: sudo apt-get install python3"
}

find_tools() {
    find_browser
    find_vulkan
    missing
    [ -n "$packages" ] || return 0
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        say "installing$packages with apt-get"
        export DEBIAN_FRONTEND=noninteractive
        quietly apt-get update || true # an index that is old may do; what is missing is named below
        # shellcheck disable=SC2086 # a list of words
        quietly apt-get install -y --no-install-recommends $packages ||
            die "apt-get could not install$packages: see above"
        missing
        [ -z "$packages" ] || die "the packages of the system brought no $names for $python: install these by hand"
    elif command -v apt-get >/dev/null; then
        die "this machine lacks $names: install with: sudo apt-get install -y$packages"
    elif is_macos; then
        # The compiler and what belongs to Python come from different places there.
        case $packages in *g++*) command="xcode-select --install" ;; *) command="brew install python3" ;; esac
        die "this machine lacks $names: install with: $command"
    else
        die "this machine lacks $names: install with the package manager of this system"
    fi
}

is_macos() {
    [ "$(uname)" = Darwin ]
}

# The tests of the vulkan backend want a device of Vulkan, which may be the CPU; without one they are skipped.
find_vulkan() {
    if [ "$kind" != test ] || [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then return 0; fi
    if ls /usr/share/vulkan/icd.d/*.json >/dev/null 2>&1; then return 0; fi
    say "installing mesa-vulkan-drivers with apt-get, for the tests of the vulkan backend"
    export DEBIAN_FRONTEND=noninteractive
    quietly apt-get update || true
    quietly apt-get install -y --no-install-recommends mesa-vulkan-drivers libvulkan1 ||
        say "mesa-vulkan-drivers could not be installed: the tests of the vulkan backend are skipped"
}

# The tests of the web page want a browser; without one they are skipped.
find_browser() {
    if [ "$kind" != test ] || command -v chromium >/dev/null; then return 0; fi
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then return 0; fi
    say "installing chromium with apt-get, for the tests of the web page"
    export DEBIAN_FRONTEND=noninteractive
    quietly apt-get update || true
    quietly apt-get install -y --no-install-recommends chromium fonts-dejavu-core ||
        say "chromium could not be installed: the tests of the web page are skipped"
}

# Sets packages (their Debian names) and names (for a person) of what is missing.
missing() {
    packages= names=
    python_package=python3
    case $python in
        /usr/bin/python3.*) [ "$(readlink -f /usr/bin/python3)" = "$python" ] || python_package=${python##*/} ;;
    esac
    find_compiler || lack g++ "a C++20 compiler (g++ 10 or newer)"
    "$python" -c 'import sysconfig; open(sysconfig.get_paths()["include"] + "/Python.h").close()' 2>/dev/null ||
        lack "$python_package-dev" "the headers of Python (Python.h)"
    # Debian has venv without ensurepip, and then venv fails half-way.
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
        : # the project was moved, or Python was replaced: scripts in .venv/bin point to nowhere
    elif [ ! -e "$unfinished" ] && "$venv/bin/python" -c 'import pip, sys
sys.exit(sys.version_info < (3, 10) or sys.prefix == sys.base_prefix)' 2>/dev/null; then
        return 0
    fi
    say "making a virtual environment in .venv"
    rm -rf -- "$venv"
    mkdir -- "$venv"
    : >"$unfinished"
    quietly make_venv_with_pip || die "the virtual environment could not be made: see above"
}

# The pip that comes with Python, unpacked: venv alone would run it to install itself, and compile all its files and those
# of setuptools, for 9 s.
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
        built=$(facts) # before, so that a file edited while the compiler runs is built at the next start
        quietly in_root build || failed
        [ -x "$venv/bin/woolly" ] || die "the installation left no command in .venv/bin: remove .venv and try again"
        make_gpu_kernels # before the stamp: pip works here, too, and what is stopped is begun again
        write_stamp run
    fi
    [ "$kind" = test ] || return 0
    say "installing what the tests need"
    built=$(sed 1d "$stamp")
    : >"$unfinished"
    # Not '.[test]', which would build once more.
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

# Compiles, and meanwhile fetches the packages that Woolly depends on, which takes 25 s by itself.
build() {
    rm -f -- "$fetched" # of a start that was stopped
    needs >"$venv/woolly-packages" || return 1
    fetching=
    if [ -s "$venv/woolly-packages" ]; then
        "$venv/bin/python" -m pip --disable-pip-version-check install --requirement "$venv/woolly-packages" \
            >"$fetched" 2>&1 9<&- &
        fetching=$!
        trap 'kill "$fetching" 2>/dev/null; exit 130' HUP INT TERM # the shell keeps Ctrl-C from what runs in the background
    fi
    status=0
    pip --verbose install --no-deps --editable . || status=$? # verbose: what ninja says of each file
    if [ -n "$fetching" ]; then
        # What the compiler says comes last, and at once: packages can wait for the next start.
        [ "$status" = 0 ] || kill "$fetching" 2>/dev/null || true
        wait "$fetching" 2>/dev/null || { [ "$status" != 0 ] || cat "$fetched"; status=1; }
    fi
    rm -f -- "$fetched"
    return "$status"
}

# A GPU that CUDA does not serve computes by Vulkan, whose kernels a clone has to compile: 90 s on two cores and a
# compiler to fetch, which most machines are spared. What fails here leaves the CPU, with the same answers. scripts/test makes them anyway.
make_gpu_kernels() {
    if [ "$kind" = test ] || [ "$("$venv/bin/python" "$root/native/gpu/wanted.py" 2>/dev/null)" != yes ]; then return 0; fi
    say "compiling kernels for this machine's GPU, which takes minutes; 92 MB are fetched for it"
    quietly in_root compile_gpu_kernels ||
        say "kernels for the GPU could not be compiled, and the CPU computes: docs/use/gpus.md says what else can be done"
}

compile_gpu_kernels() {
    pip install "$(sed -n "s/.*\"\(slangpy[^;\"]*\).*/\1/p" pyproject.toml)" && "$venv/bin/python" native/gpu/compile.py --missing
}

# What pyproject.toml says that Woolly depends on, and its tests if they are wanted. The compiler of GPU kernels is 92 MB: a
# machine without a GPU is spared them.
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
    rm -f -- "$unfinished" # pip ended by itself and left things in order
    die "the installation failed: see above"
}

write_stamp() { # write_stamp run|test
    printf '%s\n%s\n' "$1" "$built" >"$stamp"
    rm -f -- "$unfinished"
}

in_root() {
    (cd -- "$root" && "$@")
}

# Runs a command with its output hidden, and shows the end of the output only if the command fails.
quietly() {
    log=$(mktemp)
    watch_log &
    watcher=$!
    trap 'kill "$watcher" || true; rm -f -- "$log"; stopped; exit 130' INT TERM
    status=0
    # In a subshell: what the trap says is not hidden with the output of a function.
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
    say "stopped: the next start goes on, with what is compiled so far"
}

# Says how far the command is: on a terminal in one line that is written anew, else in a line every ten seconds. Ninja
# writes [files that are compiled/all files].
watch_log() {
    every=10 began=$(date +%s) first=
    [ ! -t 2 ] || every=2
    # The pause must not hold the output or the lock when this is ended.
    while sleep "$every" >/dev/null 2>&1 9<&-; do
        now=$(date +%s)
        # What pip says before the first file is compiled.
        doing=$(cat -- "$fetched" "$log" 2>/dev/null | sed -n 's/^ *Collecting \([A-Za-z0-9_.-]*\).*/fetching \1/p
s/^ *Building editable.*/preparing to compile/p
s/.*Building project with.*/compiling the first files/p' | tail -n 1)
        counts=$(sed -n 's/^ *\[\([0-9]*\)\/\([0-9]*\)\] Building .*/\1 \2/p' "$log" | tail -n 1)
        ! grep -q '^ *Successfully installed woolly' "$log" || counts= # packages are fetched still
        at=${counts% *} all=${counts#* }
        if [ -z "$counts" ]; then
            text="working for $((now - began)) s${doing:+: $doing}"
        else
            text="compiling: $at of $all files"
            [ -n "$first" ] || first=$((now - every))
            # The long files come first: what is left takes less time than as many files took before.
            [ "$at" -lt 4 ] || text="$text, at most $(((now - first) * (all - at) / at + 1)) s to go"
        fi
        if [ -t 2 ]; then printf '\r\033[Kwoolly: %s' "$text" >&2; else say "$text"; fi
    done
}
