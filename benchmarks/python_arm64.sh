#!/usr/bin/env bash
# Makes ./python-arm64, a Python for ARM that qemu emulates: in the repository on Debian, as root, with the environment
# of the project active. It takes one root folder and no system configuration. torch 2.10.0 is the newest on PyPI for ARM
# that needs no CUDA; the compiler runs as a program of x86, and the kernels are emulated.
set -euo pipefail
apt-get install qemu-user-static mmdebstrap gcc-aarch64-linux-gnu libc6-dev-arm64-cross
mmdebstrap --architectures=arm64 --variant=extract --skip=check/qemu \
    --include=python3.11,libpython3.11,libgomp1,libstdc++6 bookworm arm
pip download --no-deps --only-binary=:all: --python-version 3.11 -d wheels \
    --platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 \
    --platform manylinux_2_17_aarch64 --platform manylinux2014_aarch64 numpy ml_dtypes torch==2.10.0
for wheel in wheels/*.whl; do python -m zipfile -e "$wheel" site; done
packages=$(python -c "import torch, os; print(os.path.dirname(os.path.dirname(torch.__file__)))")
for name in typing_extensions.py sympy mpmath networkx jinja2 fsspec filelock markupsafe; do
    cp -r "$packages/$name" site
done
rm -f site/markupsafe/*.so
cat > python-arm64 <<END
#!/bin/sh
export QEMU_LD_PREFIX=$PWD/arm PYTHONPATH=$PWD/site:. QTORCH_CACHE_DIR=$PWD/kernels-arm64
export CC=aarch64-linux-gnu-gcc QTORCH_CFLAGS=-mcpu=neoverse-n1
exec qemu-aarch64-static $PWD/arm/usr/bin/python3.11 "\$@"
END
chmod +x python-arm64
