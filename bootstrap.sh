#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Sets up muse-tune on Debian 12 or Ubuntu 24.04 with the distribution's packages.
#   ./bootstrap.sh        install what is missing, build, sweep configs/quick.yaml, emit, report
#   ./bootstrap.sh test   install what is missing, build everything, run all tests
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

say() { printf 'bootstrap: %s\n' "$*"; }
fail() { printf 'bootstrap: error: %s\n' "$*" >&2; exit 3; }
usage() { sed -n '3,5s/^# *//p' "${BASH_SOURCE[0]}"; }

mode=${1:-sweep}
case "$mode" in
  sweep | test) ;;
  -h | --help | help) usage; exit 0 ;;
  *) usage >&2; printf "bootstrap: error: unknown mode '%s'\n" "$mode" >&2; exit 2 ;;
esac
[ $# -le 1 ] || { usage >&2; printf "bootstrap: error: one mode at most, not '%s'\n" "$*" >&2; exit 2; }

packages=(g++ cmake ninja-build git nlohmann-json3-dev libcli11-dev libfmt-dev libxxhash-dev
  libexpected-dev libyaml-cpp-dev libsqlite3-dev)
# clang++: what is emitted must compile with both; binutils: what binaries need; pkg-config, sqlite3 and
# python3 serve tests alone.
[ "$mode" = sweep ] || packages+=(libgtest-dev libbenchmark-dev clang binutils pkg-config sqlite3 python3)

installed() { dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null | grep -qx installed; }

install_packages() {
  command -v apt-get >/dev/null && command -v dpkg-query >/dev/null ||
    fail "needs apt-get (Debian 12, Ubuntu 24.04); elsewhere install by hand: ${packages[*]}"
  local missing=() package as_root=()
  for package in "${packages[@]}"; do installed "$package" || missing+=("$package"); done
  if [ ${#missing[@]} -eq 0 ]; then say "packages: all there"; return; fi
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null ||
      fail "missing packages: ${missing[*]}; run as root: apt-get install ${missing[*]}"
    as_root=(sudo)
  fi
  say "installing: ${missing[*]}"
  local log
  log=$(mktemp)
  # Two tries: package lists may be old or a mirror busy.
  if ! "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
    --no-install-recommends "${missing[@]}" >"$log" 2>&1; then
    if ! { "${as_root[@]}" apt-get update -qq &&
      "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
        --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
      tail -n 5 "$log" >&2
      rm -f "$log"
      fail "cannot install: ${missing[*]} (apt-get said the above)"
    fi
  fi
  rm -f "$log"
}

build() {
  local tests=$1
  shift
  say "configuring build/"
  cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DMUSE_BUILD_TESTS="$tests" "$@" \
    >build.log 2>&1 || { tail -n 20 build.log >&2; fail "cannot configure (build.log has it all)"; }
  grep -h '^-- muse-tune:' build.log || true
  say "building (the first time takes 5 to 25 minutes; build.log grows meanwhile)"
  cmake --build build >>build.log 2>&1 ||
    { { grep -E 'error|FAILED' build.log | head -n 20 >&2; } || true; fail "cannot build (build.log has it all)"; }
}

install_packages
if [ "$mode" = test ]; then
  # Warnings are errors where CI builds; a variant in the making may have some.
  build ON -DMUSE_WERROR="${CI:+ON}"
  say "running all tests"
  exec ctest --test-dir build --output-on-failure --parallel "$(nproc)"
fi

[ -f build/CMakeCache.txt ] && grep -q 'MUSE_BUILD_TESTS:BOOL=ON' build/CMakeCache.txt && tests=ON || tests=OFF
if [ "$tests" = ON ]; then
  # A tree that was set up for tests stays one; the binary is the same.
  say "building muse-tune and what production links"
  cmake --build build --target muse-tune muse_attention muse_build_variants >build.log 2>&1 ||
    { { grep -E 'error|FAILED' build.log | head -n 20 >&2; } || true; fail "cannot build (build.log has it all)"; }
else
  build OFF
fi

tool=build/muse-tune
target=()
if ! "$tool" version --json | grep -q '"cuda"'; then
  say "this build has the host target only: sweeping with --target host"
  target=(--target host)
fi
say "sweeping configs/quick.yaml"
code=0
"$tool" sweep configs/quick.yaml "${target[@]}" || code=$?
# 5: finished, though some candidates failed; the report says which.
[ "$code" -eq 0 ] || [ "$code" -eq 5 ] || fail "the sweep ended with exit code $code"
"$tool" emit --out muse_dispatch >/dev/null
"$tool" report --out report.html
say "database:        $PWD/muse-tune.db"
say "dispatch table:  $PWD/muse_dispatch/ (muse_dispatch.h, its kernels, its evidence, a build)"
say "report:          $PWD/report.html"
exit "$code"
