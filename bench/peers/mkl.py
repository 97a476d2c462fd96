"""Intel's MKL, which PyTorch's wheels use for products in fp32, at full speed on other makers' CPUs.

MKL asks itself whether the CPU is Intel's, and where it is not, takes kernels for AVX2: on an AMD EPYC with
AVX-512 a product of 1024³ reached 103 of 265 GFLOP/s, and 233 with the answer changed. A user of the wheel gets
the former. So that nobody has to wonder, gofsdp is compared with both.
"""

import os
import shutil
import subprocess
import sys

import ranks

# Both names are asked, by different versions of MKL.
ANSWER = "int mkl_serv_intel_cpu_true(void) { return 1; }\nint mkl_serv_intel_cpu(void) { return 1; }\n"


def unlock():
    """Lets the processes that start from now on take MKL's kernels for Intel's CPUs."""
    compiler = os.environ.get("CC", "cc")
    if shutil.which(compiler) is None:
        sys.exit(f"--unlock-mkl needs a C compiler, and there is no {compiler}; install one, e.g. apt-get install gcc, or set CC")
    directory = os.path.join(ranks.ROOT, ".cache", "peers")
    os.makedirs(directory, exist_ok=True)
    library = os.path.join(directory, "mkl-answer.so")
    part = f"{library}.{os.getpid()}"
    subprocess.run([compiler, "-shared", "-fPIC", "-x", "c", "-o", part, "-"], input=ANSWER, text=True, check=True)
    os.replace(part, library)
    os.environ["LD_PRELOAD"] = " ".join(filter(None, [library, os.environ.get("LD_PRELOAD")]))
