#!/bin/sh
# Makes a virtual environment and installs onhand into it, editable.
#   sh scripts/bootstrap.sh FOLDER chat|dev       dev: with what the tests and checks need
# FOLDER/ready-chat or FOLDER/ready-dev is written last, so that an interrupted run is taken up again.
set -eu
venv=$1
purpose=$2

fail() {
    echo "error: $*" >&2
    exit 1
}

# The first Python that is 3.11 or later.
find_python() {
    for name in python3 python3.13 python3.12 python3.11 python; do
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$name"
            return
        fi
    done
}

# Debian and its like ship Python without what venv needs, as a package of its own.
make_venv() {
    "$python" -m venv --clear "$venv" >"$log" 2>&1 && return
    package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    command -v apt-get >/dev/null || { cat "$log" >&2; fail "$python cannot make virtual environments"; }
    if [ "$(id -u)" = 0 ]; then
        sudo=
    elif sudo -n true 2>/dev/null; then
        sudo=sudo
    else
        fail "this Python lacks venv. Type: sudo apt-get install $package   and then run make again"
    fi
    echo "installing $package ..." >&2
    export DEBIAN_FRONTEND=noninteractive
    { $sudo apt-get install -y "$package" || { $sudo apt-get update && $sudo apt-get install -y "$package"; }; } \
        >"$log" 2>&1 || { tail -5 "$log" >&2; fail "apt-get could not install $package"; }
    "$python" -m venv --clear "$venv" >"$log" 2>&1 || { cat "$log" >&2; fail "$python cannot make virtual environments"; }
}

python=$(find_python)
[ -n "$python" ] || fail "Python 3.11 or later is not on PATH. On Debian 12 or later type: sudo apt-get install python3-venv"

log=$(mktemp)
trap 'rm -f "$log"' EXIT

if ! "$venv/bin/python" -c 'import pip' 2>/dev/null; then
    echo "making $venv with $("$python" --version) ..." >&2
    make_venv
fi
install() {
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@" ||
        fail "pip could not install what onhand needs; its message stands above"
}
echo "installing onhand into $venv ..." >&2
if [ "$purpose" = dev ]; then
    install --upgrade 'pip>=25.1' # the first that knows --group
    install --editable '.[cpu]' --group test --group check
    touch "$venv/ready-chat" # which needs nothing more
else
    install --editable '.[cpu]'
fi
touch "$venv/ready-$purpose"
