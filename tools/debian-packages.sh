# For other scripts to source: makes sure that programs of Debian are installed. It knows no check.
# shellcheck shell=bash

# require_debian_packages FILE:PACKAGE…: installs the packages whose file is missing, where this user may.
require_debian_packages() {
    local pair packages=()
    for pair in "$@"; do
        [ -e "${pair%%:*}" ] || packages+=("${pair#*:}")
    done
    [ ${#packages[@]} -gt 0 ] || return 0
    local run=()
    if [ "$(id -u)" -ne 0 ]; then
        if ! sudo -n true 2> /dev/null; then
            echo "missing: ${packages[*]}. Install with: sudo apt-get install ${packages[*]}" >&2
            return 1
        fi
        run=(sudo -n)
    fi
    if ! command -v apt-get > /dev/null; then
        echo "missing: ${packages[*]} (names of Debian's packages), and there is no apt-get to install them" >&2
        return 1
    fi
    "${run[@]}" apt-get update -q
    "${run[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${packages[@]}"
}
