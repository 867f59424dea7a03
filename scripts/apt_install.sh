#!/usr/bin/env bash
# Usage: apt_install.sh PACKAGE...
#
# Installs Debian packages as root, and fails, with apt's own words, if one could not be had.
set -euo pipefail

echo "installing $* …"
export DEBIAN_FRONTEND=noninteractive
# Another apt may be at work, and a mirror may fail once.
apt=(apt-get -qq -y -o Acquire::Retries=5 -o DPkg::Lock::Timeout=120)
"${apt[@]}" update
"${apt[@]}" install --no-install-recommends "$@" >/dev/null
