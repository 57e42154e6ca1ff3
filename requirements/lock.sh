#!/bin/sh
# Writes the hashed locks; run by `make lock`. Needs uv, and for the engine's lock a place where uv finds torch's CPU build
# (UV_FIND_LINKS or UV_EXTRA_INDEX_URL). torch and what only its CUDA build needs stay out: torch is installed first.
set -eu
cd "$(dirname "$0")/.."
compile() {
    uv pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes \
        --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" "$@"
}
compile --extra agent --extra router --extra controlplane --extra local --extra dev -o requirements/main.txt

left_out=""
for package in torch torchvision torchaudio torchcodec cuda-bindings cuda-pathfinder cuda-toolkit \
    nvidia-cublas nvidia-cuda-nvrtc nvidia-cudnn-cu13 nvidia-cusparselt-cu13 nvidia-nccl-cu13 nvidia-nvshmem-cu13; do
    left_out="$left_out --no-emit-package $package"
done
# shellcheck disable=SC2086
compile --extra engine --extra engine-cpu --extra engine-test --extra agent $left_out -o requirements/engine-cpu.txt
uv pip compile requirements/vllm-suite.in --no-deps --quiet --universal --python-version 3.11 --generate-hashes \
    --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" -o requirements/vllm-suite.txt
if grep -n '://' requirements/*.txt; then
    echo "a lock names an address" >&2
    exit 1
fi
