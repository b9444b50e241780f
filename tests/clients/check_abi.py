#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lists that are kept by hand, and the Python binding, against loader/abi.json and the library.

usage: check_abi.py SOURCE_DIR LOADER
"""
import ctypes
import json
import pathlib
import re
import sys

LISTS = {"loader/src/exports.map": r"^ *(mla_\w+);",
         "loader/include/mla_loader.hpp": r"X\((mla_\w+)\)",
         "tests/regression/loader_api.h": r"X\((mla_\w+)\)"}


def main():
    source, loader = pathlib.Path(sys.argv[1]), sys.argv[2]
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(source / "examples"))
    import mla_abi

    abi = json.loads((source / "loader/abi.json").read_text())
    functions = {function["name"] for function in abi["functions"]}
    for path, pattern in LISTS.items():
        found = set(re.findall(pattern, (source / path).read_text(), re.M))
        if found != functions:
            raise SystemExit(f"{path} differs from loader/abi.json: {sorted(found ^ functions)}")
    library = mla_abi.bind(loader)
    assert library.mla_version() == mla_abi.MLA_VERSION
    classes = {cls.__name__.lower(): cls for cls in mla_abi._Struct.__subclasses__()}
    assert len(classes) == len(abi["structs"])
    for struct in abi["structs"]:
        cls = classes[struct["name"].removeprefix("mla_").replace("_", "")]
        assert ctypes.sizeof(cls) == struct["size"], struct["name"]
        assert bytes(cls()) == struct["size"].to_bytes(4, sys.byteorder) + bytes(struct["size"] - 4), struct["name"]
        for field in struct["fields"]:
            member = getattr(cls, field["name"])
            assert (member.offset, member.size) == (field["offset"], field["size"]), field
    print(f"{len(functions)} functions, {len(classes)} structs")


if __name__ == "__main__":
    main()
