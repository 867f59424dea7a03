#!/usr/bin/env bash
# The browser tests need a Chromium, and libatomic for the Node.js that Playwright brings. As root
# on Debian both are installed, or this fails; elsewhere one line says which tests are left out
# and how to get them.
set -euo pipefail
cd "$(dirname "$0")/.."

has_libatomic() {
  [ "$(uname -s)" != Linux ] || PATH=$PATH:/sbin:/usr/sbin ldconfig -p | grep 'libatomic\.so\.1' >/dev/null
}

for name in "${JAXNB_CHROMIUM:-}" chromium chromium-browser google-chrome google-chrome-stable; do
  if [ -n "$name" ] && command -v "$name" >/dev/null && has_libatomic; then
    exit 0
  fi
done

if [ "$(id -u)" = 0 ] && [ -e /etc/debian_version ] && command -v apt-get >/dev/null; then
  exec scripts/apt_install.sh libatomic1 chromium fonts-dejavu-core
fi

echo "tests/browser is left out: it needs Chromium on PATH, or its path in JAXNB_CHROMIUM" \
  "(Debian: sudo apt-get install chromium libatomic1)."
