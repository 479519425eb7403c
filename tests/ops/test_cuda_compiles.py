"""The kernel headers stand alone: nvcc takes them without torch, and a plain C++ compiler takes their scalar core."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

CSRC = Path(__file__).resolve().parents[2] / "csrc"
HEADERS = sorted(CSRC.glob("*/*.cuh"))
ARCHITECTURES = [80, 90, 100]
KERNEL = re.compile(r"(template <[^>]*>\s*)?__global__ void (?:__launch_bounds__\([^)]*\) )?(\w+)")
# What a kernel template is compiled for where torch's 16-bit types are absent.
SCALARS = ["float", "__half", "__nv_bfloat16"]

PHILOX_PROGRAM = """
#include <cstdio>
int main() {
  const tlt_engine::PhiloxWords answers[] = {
      tlt_engine::philox4x32({{0u, 0u, 0u, 0u}}, 0u, 0u),
      tlt_engine::philox4x32({{~0u, ~0u, ~0u, ~0u}}, ~0u, ~0u),
  };
  for (const auto& words : answers) {
    for (unsigned word : words.word) std::printf("%08x ", word);
  }
}
"""


def kernel_addresses(header: Path) -> str:
    """A translation unit that includes the header and takes the address of every kernel in it."""
    kernels = []
    for template, name in KERNEL.findall(header.read_text()):
        kernels += [f"{name}<{scalar}>" for scalar in SCALARS] if template else [name]
    assert kernels, f"{header.name} holds no kernel"
    lines = ["#include <cuda_bf16.h>", "#include <cuda_fp16.h>", f'#include "{header.relative_to(CSRC)}"']
    lines += ["const void* kernels[] = {", *(f"    (const void*)&tlt_engine::{kernel}," for kernel in kernels), "};"]
    return "\n".join(lines) + "\n"


def test_every_op_with_a_cuda_launcher_has_a_header():
    assert [header.with_suffix(".cu") for header in HEADERS] == sorted(CSRC.glob("*/*.cu"))
    assert len(HEADERS) >= 3


@pytest.mark.cuda_compile
@pytest.mark.parametrize("header", HEADERS, ids=lambda header: header.stem)
def test_kernels_compile_without_torch_and_spill_nothing(header, tmp_path):
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("nvcc is not on PATH")
    source = tmp_path / f"{header.stem}.cu"
    source.write_text(kernel_addresses(header))
    command = [nvcc, "-std=c++17", "-O3", "--ptxas-options=-v", "-c", str(source), "-I", str(CSRC)]
    command += [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in ARCHITECTURES]
    result = subprocess.run([*command, "-o", str(tmp_path / "out.o")], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    spills = [int(size) for size in re.findall(r"(\d+) bytes spill", result.stderr)]
    registers = [int(count) for count in re.findall(r"Used (\d+) registers", result.stderr)]
    assert len(registers) >= len(ARCHITECTURES), result.stderr
    assert not any(spills), result.stderr
    # 255 is the limit; at 64 and below, blocks of 256 threads leave room for four of them on a multiprocessor.
    assert max(registers) <= 64, result.stderr


@pytest.mark.parametrize("standard", ["c++17", "c++20"])
def test_scalar_cores_compile_without_nvcc_and_philox_answers(standard, tmp_path):
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler on PATH")
    source = tmp_path / "cores.cpp"
    includes = "\n".join(f'#include "{header.relative_to(CSRC)}"' for header in HEADERS)
    source.write_text(includes + PHILOX_PROGRAM)
    program = tmp_path / "cores"
    command = [compiler, f"-std={standard}", "-Wall", "-Werror", "-Wno-unknown-pragmas", "-I", str(CSRC), str(source)]
    subprocess.run([*command, "-o", str(program)], check=True)
    answer = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout.split()
    assert answer[:4] == ["6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8"]
    assert answer[4:] == ["408f276d", "41c83b0e", "a20bc7c6", "6d5451fd"]
