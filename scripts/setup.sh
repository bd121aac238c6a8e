#!/usr/bin/env bash
# Takes what the build needs: Debian packages and LibTorch. Quick when all is there.
# Writes the folder of LibTorch to build/torch.prefix. --tests: takes what only tests need. --python: takes the headers
# of the Python that imports LibTorch, which it writes to build/python.executable, and what builds its package. --cuda: takes LibTorch for CUDA and a CMake that knows its compiler, and writes its
# folder to build/cuda.prefix. With other arguments: installs those packages only.
set -euo pipefail
cd "$(dirname "$0")/.."

torch_version=2.13.0
cuda_packages=('torch==2.14.1' 'cmake==4.*')  # that wheel is a CUDA build
packages=(libgloo-dev libgtest-dev libcli11-dev nlohmann-json3-dev libxxhash-dev liburing-dev ninja-build ccache libbenchmark-dev
  openmpi-bin)

# A browser, in which the report's page is tested, what makes hosts of one's own of one machine, the compiler of the
# sanitizers and fuzz targets, and what looks at Debian packages.
test_packages=(chromium iproute2 clang-16 libclang-rt-16-dev lintian)
# What reads the event files and the models that are written, and what trains models, in environments of their own:
# build/tests-venv, and one of the newer transformers. accelerate, of its Trainer, would bring a PyTorch of its own.
readers=('tensorboard==2.21.*' 'transformers==4.57.*' 'psutil==7.*')
newer_readers=('transformers==5.24.*' 'psutil==7.*')
accelerate='accelerate==1.15.*'
package_builder='scikit-build-core==1.1.*'

say() { echo "setup: $*" >&2; }

installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

# Installs the Debian packages that are missing, or says how and stops.
need_packages() {
  local missing=() package
  command -v dpkg-query >/dev/null || return 0 # not Debian: CMake says what it does not find
  for package in "$@"; do installed "$package" || missing+=("$package"); done
  [ ${#missing[@]} -gt 0 ] || return 0
  local install=(apt-get install -y --no-install-recommends "${missing[@]}")
  if [ "$(id -u)" != 0 ]; then
    say "Debian packages are missing. Run this, then try again:"
    echo "  sudo ${install[*]}" >&2
    exit 1
  fi
  say "installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  "${install[@]}" -qq >/dev/null 2>&1 || { apt-get update -qq && "${install[@]}" -qq >/dev/null; }
}

# The folder of LibTorch that a Python imports, if it is the version wanted.
torch_of() {
  "$1" - "$torch_version" 2>/dev/null <<'PYTHON'
import importlib.metadata, importlib.util, sys
assert importlib.metadata.version("torch").split("+")[0] == sys.argv[1]
print(importlib.util.find_spec("torch").submodule_search_locations[0])
PYTHON
}

# The folder of LibTorch that Torch_DIR names, if it is the version wanted.
torch_of_directory() {
  [ -n "${Torch_DIR:-}" ] || return 1
  if grep -qs "PACKAGE_VERSION \"$torch_version" "$Torch_DIR/TorchConfigVersion.cmake"; then
    (cd "$Torch_DIR/../../.." && pwd)
  else
    say "Torch_DIR holds no LibTorch $torch_version: looking elsewhere"
    return 1
  fi
}

fetch_torch() {
  need_venv
  say "fetching LibTorch $torch_version into .venv"
  [ -x .venv/bin/python ] || python3 -m venv .venv
  .venv/bin/python -m pip install --quiet --disable-pip-version-check "torch==$torch_version"
}

need_venv() { python3 -c 'import ensurepip' 2>/dev/null || need_packages python3-venv; }

# Into an environment, the first argument, the packages that the others name.
fetch_readers() {
  local venv=$1
  shift
  [ "$* $accelerate" = "$(cat "$venv/installed" 2>/dev/null)" ] && return
  need_venv
  say "fetching $* into $venv"
  [ -x "$venv/bin/python" ] || python3 -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@" &&
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps "$accelerate" &&
    echo "$* $accelerate" >"$venv/installed"
}

fetch_cuda() {
  local venv=build/cuda-venv
  command -v nvcc >/dev/null || {
    say "there is no nvcc: install the CUDA toolkit, and put its folder bin into PATH"
    exit 1
  }
  if [ "${cuda_packages[*]}" != "$(cat "$venv/installed" 2>/dev/null)" ]; then
    need_venv
    say "fetching LibTorch for CUDA into $venv (5 GB)"
    [ -x "$venv/bin/python" ] || python3 -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "${cuda_packages[@]}"
    echo "${cuda_packages[*]}" >"$venv/installed"
  fi
  "$venv/bin/python" -c 'import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0])' >build/cuda.prefix
}

# The Python of the environment or the prefix in which LibTorch is, and what builds packages, which is not put into it.
need_python() {
  local python tools=build/python-tools
  python=$(realpath -sm "$(cat build/torch.prefix)/../../../../bin/python3")
  [ -x "$python" ] || python=python3
  echo "$python" >build/python.executable
  if [ "$package_builder" != "$(cat "$tools/installed" 2>/dev/null)" ]; then
    need_venv
    say "fetching $package_builder into $tools"
    "$python" -m pip install --quiet --disable-pip-version-check --upgrade --target "$tools" "$package_builder" &&
      echo "$package_builder" >"$tools/installed"
  fi
  "$python" -c 'import os, sysconfig; assert os.path.exists(sysconfig.get_paths()["include"] + "/Python.h")' 2>/dev/null ||
    need_packages python3-dev
}

find_torch() { torch_of_directory || torch_of .venv/bin/python || torch_of python3; }

if [ "${1:-}" = --tests ]; then
  need_packages "${test_packages[@]}"
  fetch_readers build/tests-venv "${readers[@]}"
  fetch_readers build/transformers5-venv "${newer_readers[@]}"
  exit
fi
if [ "${1:-}" = --python ]; then
  need_python
  exit
fi
if [ "${1:-}" = --cuda ]; then
  fetch_cuda
  exit
fi
if [ $# -gt 0 ]; then
  need_packages "$@"
  exit
fi
need_packages "${packages[@]}"
prefix=$(find_torch) || { fetch_torch && prefix=$(find_torch); } || {
  say "no LibTorch $torch_version: pip could not install it, see above; or set Torch_DIR"
  exit 1
}
mkdir -p build
[ "$prefix" = "$(cat build/torch.prefix 2>/dev/null)" ] || echo "$prefix" >build/torch.prefix
