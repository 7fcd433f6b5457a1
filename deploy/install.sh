#!/bin/sh
# Installs Woolly for the current user in a separate environment, with uv or pipx:
#
#     sh install.sh                    the latest release
#     sh install.sh 0.1.0              this version
#     sh install.sh path/to/file.whl   this wheel
#
# If neither uv nor pipx is installed, the script installs uv into ~/.local/share/woolly/uv with pip, which verifies
# checksums. Nothing is downloaded from other hosts.
set -eu

say() {
    printf 'woolly: %s\n' "$*" >&2
}

die() {
    say "error: $*"
    exit 1
}

# Sets `python` to a supported Python.
find_python() {
    for python in python3 python3.14 python3.13 python3.12 python3.11 python3.10; do
        "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && return
    done
    die "neither uv, nor pipx, nor Python 3.10 or newer is here: install one of them, then start this again"
}

# Sets `uv` to the copy that was installed with pip.
get_uv() {
    place=${XDG_DATA_HOME:-$HOME/.local/share}/woolly/uv
    uv=$place/bin/uv
    if "$uv" --version >/dev/null 2>&1; then return; fi
    find_python
    say "installing uv into $place"
    rm -rf -- "$place"
    "$python" -m venv "$place" >&2 ||
        die "$python cannot make a virtual environment: on Debian, install python3-venv"
    "$place/bin/python" -m pip --disable-pip-version-check install --quiet --only-binary :all: uv >&2 ||
        die "pip could not install uv: see above"
}

# The shell reads the whole function before it runs, so a truncated download does nothing.
main() {
    case ${1-} in
        "") wanted=woolly-llm ;;
        *.whl) wanted=$1 ;;
        [0-9]*) wanted=woolly-llm==$1 ;;
        *) die "$1 is neither a version nor a wheel" ;;
    esac
    if command -v uv >/dev/null; then
        uv=uv
    elif command -v pipx >/dev/null; then
        say "installing $wanted by pipx"
        pipx install --force "$wanted" >&2
        say 'done: try "woolly run hello"; "pipx uninstall woolly-llm" removes it'
        return
    else
        get_uv
    fi
    say "installing $wanted by uv"
    "$uv" tool install --force "$wanted" >&2
    folder=$("$uv" tool dir --bin)
    case :$PATH: in
        *":$folder:"*) ;;
        *) say "$folder is not on the path: add it, or start $folder/woolly" ;;
    esac
    say "done: try \"woolly run hello\"; \"$uv tool uninstall woolly-llm\" removes it"
}

main "$@"
