#!/bin/bash
# prove.sh BUNDLE RESULTS [PART...]: the proof, on a machine with one H200 (or another GPU of compute capability 9.0), torch 2.11,
# transformers, pyarrow, numba, pandas and nvcc. Parts: agree (about 4 minutes), time (about 4 minutes); both if none is named.
set -e
BUNDLE=$(cd "$1" && pwd); mkdir -p "$2"; RESULTS=$(cd "$2" && pwd); shift 2
export IN_ENGINE=${IN_ENGINE:-$(mktemp -d)}
if [ ! -d "$IN_ENGINE/site" ]; then
  mkdir -p "$IN_ENGINE/site"
  for part in site kernels; do tar xJf "$BUNDLE/$part.txz" -C "$IN_ENGINE/site" & done; wait
  if [ -f "$BUNDLE/cache.txz" ]; then tar xJf "$BUNDLE/cache.txz" -C "$IN_ENGINE"; fi # JIT results of an earlier run: saves a minute
fi
unset OPENBLAS_CORETYPE OPENBLAS_L2_SIZE
: "${CUDA_HOME:=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")}"
export CUDA_HOME PYTHONPATH="$IN_ENGINE/site" PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 TORCHDYNAMO_DISABLE=1
export SGLANG_IS_FLASHINFER_AVAILABLE=0 SGLANG_JIT_DEEPGEMM_PRECOMPILE=0 SGLANG_DSA_FUSE_TOPK=0 SGLANG_DSA_PREFILL_DENSE_ATTN_KV_LEN_THRESHOLD=0
C="$IN_ENGINE/cache"; export TVM_FFI_CACHE_DIR=$C/tvm TRITON_CACHE_DIR=$C/triton DG_JIT_CACHE_DIR=$C/dg SGLANG_DG_CACHE_DIR=$C/dg XDG_CACHE_HOME=$C/xdg
cd "$IN_ENGINE" # a clone of hisparse-sim as the current folder would hide the installed one
status=0; python3 "$BUNDLE/prove.py" "$BUNDLE" "$RESULTS" "$@" || status=$?
(cd "$IN_ENGINE" && tar c cache | xz -3 -T0 > "$RESULTS/cache.txz")
exit $status
