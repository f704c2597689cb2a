#!/bin/bash
# Build the wheel of this checkout, native parts included: wheel.sh OUT.
#
# The image build runs it on an old system, so that the library which goes into foreign containers loads in old ones,
# too; that it does is checked here, wherever it was built. PYTHON: the interpreter to build for (python3).
# PARTAGE_ISOLATION=no: build with what that interpreter has installed, instead of fetching the build's requirements;
# PARTAGE_HEADERS: where the CUDA headers lie already. Fails where anything does not compile, or asks for a newer glibc
# than tenants have.
set -euo pipefail
out=$(mkdir -p "$1" && cd "$1" && pwd)
top=$(cd "$(dirname "$0")/../.." && pwd)
python=${PYTHON:-python3}
flags=(--quiet --no-deps --disable-pip-version-check --wheel-dir "$out")
[ "${PARTAGE_ISOLATION:-yes}" = yes ] || flags+=(--no-build-isolation)
[ -z "${PARTAGE_HEADERS:-}" ] || export SKBUILD_CMAKE_DEFINE="PARTAGE_HEADERS=$PARTAGE_HEADERS"

# A copy: the build writes beside its sources, and a checkout may be read-only.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/source"
tar -c -C "$top" --exclude=__pycache__ --exclude='_abi*.so' --exclude='*.egg-info' \
	CMakeLists.txt pyproject.toml README.md LICENSE hook proto python plugin | tar -x -C "$scratch/source"
rm -f "$out"/partage-*.whl
"$python" -m pip wheel "${flags[@]}" "$scratch/source"

"$python" -m zipfile -e "$out"/partage-*.whl "$scratch/wheel"
"$top/deploy/image/glibc.sh" 2.17 "$scratch/wheel/partage/_native/lib/libvgpu.so"
ls "$out"/partage-*.whl
