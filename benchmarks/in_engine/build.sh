#!/bin/bash
# build.sh BUNDLE [WHEELS]: makes of wheels the folder that proves in_engine on a machine with one GPU and no network.
# About a minute, 3 GB of disk, no GPU. WHEELS keeps what is downloaded; what is there is not downloaded again.
# Needs python3.12, unzip, xz. About 30 MB: sglang's Python and CUDA sources, the kernels of one GPU generation (sm90).
set -e
HERE=$(cd "$(dirname "$0")" && pwd); ROOT=$(cd "$HERE/../.." && pwd)
mkdir -p "$1" "${2:-$1/wheels}"; BUNDLE=$(cd "$1" && pwd); WHEELS=$(cd "${2:-$1/wheels}" && pwd)
WORK=$(mktemp -d); trap 'rm -rf "$WORK"' EXIT
${PYTHON:-python3.12} -m venv "$WORK/venv"; PIP="$WORK/venv/bin/python -m pip"
PLATFORMS=""; for p in 2_34 2_28 2_27 2_26 2_17 2_12 2_5; do PLATFORMS="$PLATFORMS --platform manylinux_${p}_x86_64"; done
for p in 2014 2010 1; do PLATFORMS="$PLATFORMS --platform manylinux${p}_x86_64"; done
get() { $PIP download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp $PLATFORMS --find-links "$WHEELS" -d "$WHEELS" "$@"; }
get -r "$HERE/wheels.txt"
get sglang==0.5.17 sglang-kernel==0.4.5 sgl-deep-gemm==0.1.5.post1
S="$WORK/site"; mkdir -p "$S" "$WORK/k" "$WORK/e"
grep -v '^#' "$HERE/wheels.txt" | sed 's/==.*//; s/[-.]/_/g' | while read -r name; do for w in "$WHEELS"/$name-*.whl; do unzip -q -o "$w" -d "$S"; done; done
unzip -q -o "$WHEELS"/sglang-0.5.17-*.whl -d "$WORK/e"
unzip -q -o "$WHEELS"/sglang_kernel-0.4.5-*.whl -d "$WORK/k" -x 'sgl_kernel/flash_ops*' 'sgl_kernel/infllm_ops*' 'sgl_kernel/sm100/*' # 1.2 GB -> 34 MB
unzip -q -o "$WHEELS"/sgl_deep_gemm-*.whl -d "$WORK/k"
cp -r "$WORK"/k/sgl_kernel "$WORK"/k/deep_gemm "$WORK"/k/*.dist-info "$S/"
(cd "$WORK/e" && tar c --exclude='*.so' --exclude=__pycache__ --exclude=multimodal_gen --exclude=sglang/test --exclude=sglang/benchmark --exclude='*.json' sglang sglang-0.5.17.dist-info) | tar x -C "$S"
sed -i '1i import _in_engine_boot  # see benchmarks/in_engine' "$S/sglang/__init__.py" # the only change to sglang
cp "$HERE"/stubs/*.py "$S/"
mkdir "$WORK/own"; (cd "$ROOT" && git ls-files -z | tar c --null -T -) | tar x -C "$WORK/own" # pip leaves a folder where it builds
$PIP install -q --no-deps --target "$S" "$WORK/own" # with its entry point
rm -f "$S"/hisparse_sim/traces/data/*.parquet; find "$S" -name __pycache__ -prune -exec rm -rf {} +
(cd "$S" && tar c --exclude=sgl_kernel/flashmla_ops.abi3.so --exclude=sgl_kernel/sm90 . | xz -9 --lzma2=dict=128MiB > "$BUNDLE/site.txz") &
(cd "$S" && tar c sgl_kernel/flashmla_ops.abi3.so sgl_kernel/sm90 | xz -9e > "$BUNDLE/kernels.txz") & wait
rm -rf "$BUNDLE/models"; cp -r "$HERE/models" "$HERE/prove.sh" "$HERE/prove.py" "$HERE/servers.py" "$BUNDLE/"
du -sh --exclude=wheels "$BUNDLE"
