#!/usr/bin/env bash
# The browser tests need a Chromium, and libatomic for the Node.js that Playwright brings; the tests
# of groups over several hosts need an SSH server and `ip`; those with Slurm its daemons, which are
# looked for if the word slurm is given. As root on Debian all are installed, or this fails;
# elsewhere a line says which tests are left out and how to get what they need.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:/sbin:/usr/sbin

has_libatomic() {
  [ "$(uname -s)" != Linux ] || ldconfig -p | grep 'libatomic\.so\.1' >/dev/null
}

has_chromium() {
  local name
  for name in "${JAXNB_CHROMIUM:-}" chromium chromium-browser google-chrome google-chrome-stable; do
    if [ -n "$name" ] && command -v "$name" >/dev/null && has_libatomic; then return 0; fi
  done
  return 1
}

installs=$([ "$(id -u)" = 0 ] && [ -e /etc/debian_version ] && command -v apt-get || true)
packages=()

if ! has_chromium; then
  if [ -n "$installs" ]; then
    packages+=(libatomic1 chromium fonts-dejavu-core)
  else
    echo "tests/browser is left out: it needs Chromium on PATH, or its path in JAXNB_CHROMIUM" \
      "(Debian: sudo apt-get install chromium libatomic1)."
  fi
fi

if ! { command -v sshd && command -v ip; } >/dev/null; then
  # Under systemd the package would start a server for the whole machine.
  if [ -n "$installs" ] && [ ! -d /run/systemd/system ]; then
    packages+=(openssh-server iproute2)
  else
    echo "The tests on two hosts are left out: they need root, openssh-server and iproute2" \
      "(Debian: sudo apt-get install openssh-server iproute2)."
  fi
fi

if [ "${1:-}" = slurm ] && ! { command -v slurmctld && command -v munged; } >/dev/null; then
  if [ -n "$installs" ] && [ ! -d /run/systemd/system ]; then
    packages+=(slurmctld slurmd slurm-client munge)
  else
    echo "The tests with Slurm are left out: they need slurmctld, slurmd, slurm-client and munge too."
  fi
fi

if [ ${#packages[@]} -gt 0 ]; then
  exec scripts/apt_install.sh "${packages[@]}"
fi
