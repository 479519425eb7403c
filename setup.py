"""Builds ``tlt_engine._C``; everything else about the package is in pyproject.toml.

The build reads two environment variables: ``TLT_ENGINE_CUDA_ARCHS`` (``"80;90;100"``) and ``MAX_JOBS``.
"""

import os
from pathlib import Path

import torch
from setuptools import Extension, setup
from torch.utils.cpp_extension import CUDA_HOME, BuildExtension, CppExtension, CUDAExtension

ROOT = Path(__file__).resolve().parent
DEFAULT_CUDA_ARCHS = "80;90;100"
# -ffast-math is out: gumbel_argmax compares infinities and must survive NaN.
CXX_FLAGS = ["-O3", "-march=native", "-fopenmp", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"]
CXX_FLAGS += ["-g0", "-fvisibility=hidden", "-Wall", "-Wno-unknown-pragmas", "-Wno-maybe-uninitialized"]


def sources(*patterns: str) -> list[str]:
    """Lists the files under csrc that match, relative to the repository as setuptools wants them."""
    return [str(path.relative_to(ROOT)) for pattern in patterns for path in sorted(ROOT.glob(f"csrc/{pattern}"))]


def cuda_arch_flags() -> list[str]:
    """Returns one ``-gencode`` per architecture, and PTX of the newest for chips that come later."""
    archs = os.environ.get("TLT_ENGINE_CUDA_ARCHS", DEFAULT_CUDA_ARCHS).split(";")
    flags = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in archs]
    return [*flags, f"-gencode=arch=compute_{archs[-1]},code=compute_{archs[-1]}"]


def extension() -> Extension:
    """Describes the extension: with CUDA when torch has it and a toolkit is found, for the CPU otherwise."""
    files = sources("torch_bindings.cpp", "*/*_check.cpp", "*/*_cpu.cpp")
    include_dirs = [str(ROOT / "csrc")]
    cxx_flags = CXX_FLAGS
    link_flags = ["-fopenmp"]
    if torch.version.cuda is None or CUDA_HOME is None:
        return CppExtension(
            "tlt_engine._C",
            files,
            include_dirs=include_dirs,
            extra_compile_args={"cxx": cxx_flags},
            extra_link_args=link_flags,
            py_limited_api=True,
        )
    return CUDAExtension(
        "tlt_engine._C",
        files + sources("*/*.cu"),
        include_dirs=include_dirs,
        define_macros=[("TLT_ENGINE_WITH_CUDA", None)],
        extra_compile_args={"cxx": cxx_flags, "nvcc": ["-O3", *cuda_arch_flags()]},
        extra_link_args=link_flags,
        py_limited_api=True,
    )


setup(
    ext_modules=[extension()],
    cmdclass={"build_ext": BuildExtension},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
