# For scripts to source, in the repository's root: an environment of Python 3.11 with the programs that a script names.
# shellcheck shell=bash

# `require_venv DIRECTORY PACKAGE==VERSION …` makes the environment anew if it has other packages.
require_venv() {
    local venv=$1
    shift
    [ "$(cat "$venv/.installed" 2> /dev/null)" != "$*" ] || return 0
    python3 -m venv --clear "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check "$@"
    echo "$*" > "$venv/.installed"
}
