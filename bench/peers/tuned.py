"""What PyTorch on a CPU could do with settings that no user of its wheels has by default.

Products in fp32: MKL, Intel's library in the wheels, asks itself whether the CPU is Intel's, and where it is
not takes kernels for AVX2: on an AMD EPYC with AVX-512 a product of 1024³ reached 103 of 265 GFLOP/s, and 233
with the answer changed.

Memory: the C library gives freed tensors back to the system at once and takes them again page by page. Told to
keep them (mallopt(3)), it needs more memory and saves that time. Where that does not fit the machine, they are
given back as ever.

So that nobody has to wonder what they would change, gofsdp is compared with both.
"""

import os
import shutil
import subprocess
import sys

import ranks

# Both names are asked, by different versions of MKL.
ANSWER = "int mkl_serv_intel_cpu_true(void) { return 1; }\nint mkl_serv_intel_cpu(void) { return 1; }\n"
KEEP = "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=0x4000000000:glibc.malloc.arena_max=1"


def tune(keep):
    """Gives the processes that start from now on these settings, that of memory if it is to be kept."""
    compiler = os.environ.get("CC", "cc")
    if shutil.which(compiler) is None:
        sys.exit(f"--tuned needs a C compiler, and there is no {compiler}; install one, e.g. apt-get install gcc, or set CC")
    directory = os.path.join(ranks.ROOT, ".cache", "peers")
    os.makedirs(directory, exist_ok=True)
    library = os.path.join(directory, "mkl-answer.so")
    part = f"{library}.{os.getpid()}"
    subprocess.run([compiler, "-shared", "-fPIC", "-x", "c", "-o", part, "-"], input=ANSWER, text=True, check=True)
    os.replace(part, library)
    os.environ["LD_PRELOAD"] = " ".join(filter(None, [library, os.environ.get("LD_PRELOAD")]))
    if keep:
        os.environ["GLIBC_TUNABLES"] = KEEP
