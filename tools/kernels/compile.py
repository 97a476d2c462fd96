"""Compiles the CUDA sources of a directory to PTX beside them, with NVRTC and without a GPU.

    python tools/kernels/compile.py cuda/kernels            writes what changed
    python tools/kernels/compile.py --check cuda/kernels    writes nothing, fails where PTX is not what its source gives

The same sources give the same bytes on any machine: names in the PTX are those of the files, without a
directory. The first line of each file is a digest of all that it was made of, by which a test without a
compiler can tell that it is stale.
"""

import argparse
import ctypes
import glob
import hashlib
import os
import re
import sys

OPTIONS = ["-arch=compute_80", "--std=c++17", "-default-device", "-lineinfo"]
INCLUDE = re.compile(rb'(?m)^#include "(\w+\.cuh)"$')


def nvrtc():
    """Opens the library of the wheel that is installed beside this Python."""
    import nvidia.cuda_nvrtc

    folder = os.path.join(os.path.dirname(nvidia.cuda_nvrtc.__file__), "lib")
    # The builtins are looked for by name alone; whoever has opened them before is found.
    for builtins in glob.glob(os.path.join(folder, "libnvrtc-builtins.so.*")):
        ctypes.CDLL(builtins, ctypes.RTLD_GLOBAL)
    library = ctypes.CDLL(os.path.join(folder, "libnvrtc.so.12"))
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    return library


def call(library, name, *args):
    code = getattr(library, name)(*args)
    if code != 0:
        raise RuntimeError(f"{name}: {library.nvrtcGetErrorString(code).decode()}")


def text_of(library, kind, program):
    """Returns the program's "PTX" or "ProgramLog"."""
    size = ctypes.c_size_t()
    call(library, f"nvrtcGet{kind}Size", program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    call(library, f"nvrtcGet{kind}", program, text)
    return text.value.decode()


def plain(ptx):
    """Drops what depends on where NVRTC ran, and what it adds of its own.

    That is the working directory before each file's name, and the constants of its <nv/target>, to which
    nothing refers.
    """
    ptx = re.sub(r'(?m)^(\t\.file\t\d+ ")[^"\n]*/', r"\1", ptx)
    return re.sub(r"(?m)^\.global [^\n]*2nv6target[^\n]*\n", "", ptx)


def headers_of(source):
    """Returns the headers that a source includes, also through each other, by name and in its order."""
    found = {}

    def follow(text):
        for name in INCLUDE.findall(text):
            if name not in found:
                with open(name, "rb") as f:
                    found[name] = f.read()
                follow(found[name])

    follow(source)
    return dict(sorted(found.items()))


def compile_source(library, name, source, headers):
    """Returns PTX and log; PTX is None where the source has errors."""
    program, n = ctypes.c_void_p(), len(headers)
    texts, names = (ctypes.c_char_p * n)(*headers.values()), (ctypes.c_char_p * n)(*headers)
    call(library, "nvrtcCreateProgram", ctypes.byref(program), source, name.encode(), n, texts, names)
    try:
        options = (ctypes.c_char_p * len(OPTIONS))(*[o.encode() for o in OPTIONS])
        code = library.nvrtcCompileProgram(program, len(OPTIONS), options)
        log = text_of(library, "ProgramLog", program)
        return (plain(text_of(library, "PTX", program)) if code == 0 else None), log
    finally:
        call(library, "nvrtcDestroyProgram", ctypes.byref(program))


def digest(source, headers):
    """As cuda/kernels' tests compute it: the source, and each header after a zero byte."""
    return hashlib.sha256(b"\0".join([source, *headers.values()])).hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, compare with what is there")
    parser.add_argument("directory")
    parser.add_argument("families", nargs="*", help="only these, such as norm")
    args = parser.parse_args()

    library, failed = nvrtc(), False
    os.chdir(args.directory)
    sources = sorted(glob.glob("*.cu"))
    families = {s[: -len(".cu")]: s for s in sources}
    for unknown in sorted(set(args.families) - set(families)):
        sys.exit(f"there is no {unknown}.cu in {args.directory}")
    for family in args.families or families:
        path = families[family]
        target = path[: -len(".cu")] + ".ptx"
        with open(path, "rb") as f:
            source = f.read()
        headers = headers_of(source)
        shown = os.path.join(args.directory, target)
        ptx, log = compile_source(library, family + ".cu", source, headers)
        if log.strip("\0\n "):
            print(log.strip("\0\n "), file=sys.stderr)
        if ptx is None:
            failed = True
            continue
        ptx = f"// sources {digest(source, headers)}\n" + ptx.rstrip("\0\n") + "\n"
        old = None
        if os.path.exists(target):
            with open(target) as f:
                old = f.read()
        if old == ptx:
            continue
        if args.check:
            print(f"{shown} is not what {family}.cu gives; run make kernels and commit it", file=sys.stderr)
            failed = True
            continue
        with open(target, "w") as f:
            f.write(ptx)
        print(shown)
    if not args.families:
        for target in sorted(glob.glob("*.ptx")):
            if target[: -len(".ptx")] not in families:
                print(f"{os.path.join(args.directory, target)} has no source", file=sys.stderr)
                failed = True
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
