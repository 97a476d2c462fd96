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
HEADER = "common.cuh"


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


def compile_source(library, name, source, header):
    """Returns PTX and log; PTX is None where the source has errors."""
    program = ctypes.c_void_p()
    headers, names = (ctypes.c_char_p * 1)(header), (ctypes.c_char_p * 1)(HEADER.encode())
    call(library, "nvrtcCreateProgram", ctypes.byref(program), source, name.encode(), 1, headers, names)
    try:
        options = (ctypes.c_char_p * len(OPTIONS))(*[o.encode() for o in OPTIONS])
        code = library.nvrtcCompileProgram(program, len(OPTIONS), options)
        log = text_of(library, "ProgramLog", program)
        return (plain(text_of(library, "PTX", program)) if code == 0 else None), log
    finally:
        call(library, "nvrtcDestroyProgram", ctypes.byref(program))


def digest(source, header):
    """As cuda/kernels' tests compute it: source, a zero byte, header."""
    return hashlib.sha256(source + b"\0" + header).hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, compare with what is there")
    parser.add_argument("directory")
    parser.add_argument("families", nargs="*", help="only these, such as norm")
    args = parser.parse_args()

    library, failed = nvrtc(), False
    os.chdir(args.directory)
    with open(HEADER, "rb") as f:
        header = f.read()
    sources = sorted(glob.glob("*.cu"))
    families = {s[: -len(".cu")]: s for s in sources}
    for unknown in sorted(set(args.families) - set(families)):
        sys.exit(f"there is no {unknown}.cu in {args.directory}")
    for family in args.families or families:
        path = families[family]
        target = path[: -len(".cu")] + ".ptx"
        with open(path, "rb") as f:
            source = f.read()
        shown = os.path.join(args.directory, target)
        ptx, log = compile_source(library, family + ".cu", source, header)
        if log.strip("\0\n "):
            print(log.strip("\0\n "), file=sys.stderr)
        if ptx is None:
            failed = True
            continue
        ptx = f"// sources {digest(source, header)}\n" + ptx.rstrip("\0\n") + "\n"
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
