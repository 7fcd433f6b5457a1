# Sourced by scripts/run and scripts/test: set_up makes .venv in the project root and installs Woolly into it.
# Plain POSIX sh. What it says goes to stderr; the answers of Woolly have stdout for themselves.
#
# .venv/woolly-stamp says what was installed, one fact per line: run or test, the project root, the Python under
# .venv, a checksum of pyproject.toml and native/, whether there is an NVIDIA GPU: kernels are compiled for the one that
# is there, and without one barely at all. A start that finds its own facts there installs nothing.

root=$(CDPATH='' cd -- "$(dirname -- "$(readlink -f -- "$0" 2>/dev/null || echo "$0")")/.." && pwd -P)
venv=$root/.venv
stamp=$venv/woolly-stamp
unfinished=$venv/woolly-unfinished # there while pip works: a start that was killed is not built upon

# An activated environment, or settings for another Python, must not reach into .venv.
unset PYTHONHOME PYTHONPATH VIRTUAL_ENV PIP_TARGET PIP_PREFIX PIP_PYTHON
export PIP_USER=0
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

gpu() {
    if command -v nvidia-smi >/dev/null; then echo "a GPU"; else echo "no GPU"; fi
}

is_current() {
    [ -x "$venv/bin/python" ] && [ -x "$venv/bin/woolly" ] && [ -f "$stamp" ] && [ ! -e "$unfinished" ] || return 1
    facts=$(place && sources && gpu)
    case $(cat "$stamp") in
        "$kind
$facts" | "test
$facts") return 0 ;;
    esac
    return 1
}

# ----------------------------------------------------------------------------------------- what the system gives

find_python() {
    # .venv may be the activated environment, and about to be removed.
    PATH=$(printf '%s\n' "$PATH" | tr ':' '\n' | grep -Fxv -- "$venv/bin" | paste -sd: -)
    python=
    for candidate in python3 python3.13 python3.12 python3.11 python3.10; do
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
    quietly "$python" -m venv "$venv" || die "the virtual environment could not be made: see above"
}

install() {
    target=. strict=OFF targets=${WOOLLY_CUDA_TARGETS:-}
    # Tests compile PTX to see that it compiles: a machine without a GPU has no other use for it.
    if [ "$kind" = test ]; then target='.[test]' strict=ON targets=${targets:-quick}; fi
    say "installing Woolly and building its native module (three to eight minutes)"
    : >"$unfinished"
    case $(stamp_line 5) in
        "" | "$(gpu)") ;;
        *) rm -rf -- "$root"/build/*/cuda/own "$root"/build/*/cuda/quick ;; # kernels for what was there
    esac
    rm -f -- "$stamp"
    built=$(sources) # before, so that a file edited while the compiler runs is built at the next start
    # A variable instead of pip's --config-settings, which the pip of Ubuntu 22.04 does not know.
    quietly in_root env "SKBUILD_CMAKE_DEFINE=WOOLLY_STRICT=$strict" "WOOLLY_CUDA_TARGETS=$targets" \
        "$venv/bin/python" -m pip --disable-pip-version-check install --editable "$target" || {
        rm -f -- "$unfinished" # pip ended by itself and left things in order
        die "the installation failed: see above"
    }
    [ -x "$venv/bin/woolly" ] || die "the installation left no command in .venv/bin: remove .venv and try again"
    { printf '%s\n' "$kind" && place && printf '%s\n' "$built" && gpu; } >"$stamp"
    rm -f -- "$unfinished"
}

in_root() {
    (cd -- "$root" && exec "$@")
}

# Runs a command with its output hidden, and shows the end of the output only if the command fails. On a terminal, a dot
# every few seconds shows that it is running.
quietly() {
    log=$(mktemp)
    dots=
    if [ -t 2 ]; then
        (while sleep 3; do printf . >&2; done) &
        dots=$!
    fi
    trap '[ -z "$dots" ] || kill "$dots"; rm -f -- "$log"; exit 130' INT TERM
    status=0
    "$@" >"$log" 2>&1 </dev/null || status=$?
    if [ -n "$dots" ]; then
        kill "$dots" 2>/dev/null || true
        wait "$dots" 2>/dev/null || true
        printf '\n' >&2
    fi
    [ "$status" = 0 ] || tail -n 40 "$log" >&2
    rm -f -- "$log"
    trap - INT TERM
    return "$status"
}
