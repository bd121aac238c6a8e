#!/usr/bin/env bash
# Format, layers, self-contained headers, clang-tidy on what has no torch in it.
# scripts/lint.sh [build folder with compile_commands.json] [file for clang-tidy]...
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/dev}
shift || true
failed=0

step() {
  echo "lint: $1"
  shift
  "$@" || failed=1
}

format() { git ls-files -co --exclude-standard '*.h' '*.cpp' '*.cu' | xargs clang-format --dry-run -Werror; }

self_contained() {
  local torch header bad=0
  torch=$(cat build/torch.prefix)
  for header in include/zero/*.h; do
    echo "#include \"zero/${header##*/}\"" | "${CXX:-g++}" -std=c++20 -fsyntax-only -Iinclude -isystem "$torch/include" \
      -isystem "$torch/include/torch/csrc/api/include" -Wall -Wextra -Wpedantic -Wshadow -Werror -x c++ - || { echo "$header does not compile alone" && bad=1; }
  done
  return $bad
}

# The files that are compiled without LibTorch, and not made by the build.
torch_free() {
  python3 - "$build" <<'PYTHON'
import json, pathlib, sys
build = pathlib.Path(sys.argv[1]).resolve()
commands = json.loads((build / "compile_commands.json").read_text())
files = (c["file"] for c in commands if "/torch/" not in c["command"])
print(*(file for file in files if not pathlib.Path(file).is_relative_to(build)), sep="\n")
PYTHON
}

# clang 14 knows _Float16 only on processors that compute with it.
tidy() {
  printf '%s\n' "${files[@]}" | xargs -P "$(nproc)" -n 1 clang-tidy -p "$build" --quiet \
    --extra-arg=-Wno-unknown-warning-option --extra-arg=-mavx512fp16 2>&1 | { ! grep -vE '^([0-9]+ warnings?|Suppressed|Use -header-filter)'; }
}

scripts/setup.sh clang-format clang-tidy
files=("$@")
[ ${#files[@]} -gt 0 ] || mapfile -t files < <(torch_free)
step "format" format
step "layers and lengths" scripts/check_layers.py
step "self-contained headers" self_contained
step "clang-tidy on ${#files[@]} files" tidy
[ "$failed" = 0 ] && echo "lint: all clean"
exit "$failed"
