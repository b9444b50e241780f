#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Describes the C ABI of loader/include/mla_loader.h, for bindings in other languages.

    make_abi.py            writes loader/abi.json, examples/mla_abi.py and the bindings of abi_languages.py
    make_abi.py --check    exit code 1 if any of them is not what the header says
    make_abi.py --probe    prints a C program whose compilation proves the layouts

The reader takes the small part of C that the header is written in and refuses anything else, so
nothing is left out without a word. Layouts are computed (every field aligned to its size, as on all
64-bit platforms) and proved by the probe.
"""
import argparse
import json
import pathlib
import re
import sys

sys.dont_write_bytecode = True
import abi_languages  # noqa: E402, beside this file

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADER = ROOT / "loader/include/mla_loader.h"
JSON_FILE = ROOT / "loader/abi.json"
PYTHON_FILE = ROOT / "examples/mla_abi.py"

SIZES = {"uint32_t": 4, "int32_t": 4, "uint64_t": 8, "int64_t": 8, "float": 4}
NAME = r"[A-Za-z_][A-Za-z0-9_]*"
TYPE = rf"(?:const )?{NAME}(?:\* ?(?:const ?)?)*"


class HeaderError(Exception):
    pass


def strip(text):
    """The header without comments and preprocessor lines other than constants."""
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    text = text.replace("\\\n", " ")
    constants, code = [], []
    depth = 0  # of conditionals; the include guard is the first
    for line in text.split("\n"):
        directive = re.match(r"\s*#\s*(\w+)\s*(.*)", line)
        if not directive:
            # `extern "C"` stands within #ifdef __cplusplus.
            if depth <= 1:
                code.append(line)
            continue
        word, rest = directive.groups()
        if word in ("if", "ifdef", "ifndef"):
            depth += 1
        elif word == "endif":
            depth -= 1
        elif word == "define" and depth == 1:
            constant = re.fullmatch(rf"({NAME})\s+(.+?)\s*", rest)
            if constant:
                constants.append(constant.groups())
            elif rest.strip() != "MLA_LOADER_H":
                raise HeaderError(f"cannot read: #define {rest}")
        elif word not in ("define", "elif", "else", "include"):
            raise HeaderError(f"cannot read: {line}")
    return constants, " ".join(" ".join(code).split())


def number(text):
    """The value of an integer or string constant."""
    if re.fullmatch(r'"[^"\\]*"', text):
        return text[1:-1]
    value = re.fullmatch(r"(0x[0-9a-fA-F]+|[0-9]+)[uU]?", text)
    if not value:
        raise HeaderError(f"constant with the value {text}")
    return int(value.group(1), 0)


def normal(type_):
    return re.sub(r"\s*\*\s*", "*", type_.strip()).replace("*const", "* const").strip()


def read_struct(name, body, types):
    fields, offset = [], 0
    for line in filter(None, (part.strip() for part in body.split(";"))):
        field = re.fullmatch(rf"({TYPE}) ?\b({NAME})", line)
        if not field:
            raise HeaderError(f"{name}: cannot read the field: {line}")
        type_ = normal(field.group(1))
        size = 8 if type_.endswith("*") else SIZES.get(types.get(type_, type_))
        if size is None:
            raise HeaderError(f"{name}.{field.group(2)}: type {type_}")
        if offset % size:
            raise HeaderError(f"{name}.{field.group(2)}: padding before it")
        fields.append({"name": field.group(2), "type": type_, "offset": offset, "size": size})
        offset += size
    if fields[0]["name"] != "struct_size" or offset % 8:
        raise HeaderError(f"{name}: begins without struct_size, or ends with padding")
    return {"name": name, "size": offset, "fields": fields}


def read_function(text):
    match = re.fullmatch(rf"({TYPE}) ?\b({NAME})\((.*)\)", text)
    if not match:
        raise HeaderError(f"cannot read the function: {text}")
    returns, name, parameters = match.groups()
    listed = []
    if parameters.strip() != "void":
        for part in parameters.split(","):
            parameter = re.fullmatch(rf"({TYPE}) ?\b({NAME})", part.strip())
            if not parameter:
                raise HeaderError(f"{name}: cannot read the parameter: {part}")
            listed.append({"name": parameter.group(2), "type": normal(parameter.group(1))})
    return {"name": name, "returns": normal(returns), "parameters": listed}


def read_header(text):
    constants, code = strip(text)
    abi = {"handles": [], "types": {}, "constants": {}, "structs": [], "functions": []}
    inits = {}
    for name, value in constants:
        if name == "MLA_API":
            continue
        init = re.fullmatch(r"\{ \(uint32_t\)sizeof\((\w+)\)((?:, 0)*) \}", re.sub(r"\s+", " ", value))
        if init:
            inits[init.group(1)] = (name, init.group(2).count("0") + 1)
        else:
            abi["constants"][name] = number(value)
    at = 0
    declaration = re.compile(
        rf"\s*(?:typedef struct (?P<struct>{NAME}) \{{(?P<body>[^}}]*)\}} (?P=struct);"
        rf"|typedef struct (?P<handle>{NAME}) (?P=handle);"
        rf"|typedef (?P<base>{NAME}) (?P<alias>{NAME});"
        rf"|MLA_API (?P<function>[^;]+);)")
    while code[at:].strip():
        match = declaration.match(code, at)
        if not match:
            raise HeaderError(f"cannot read: {code[at:at + 80]}")
        at = match.end()
        if match["struct"]:
            struct = read_struct(match["struct"], match["body"], abi["types"])
            init, values = inits.pop(struct["name"], (None, 0))
            if init is None or values != len(struct["fields"]):
                raise HeaderError(f"{struct['name']}: no INIT macro, or one with {values} values for "
                                  f"{len(struct['fields'])} fields")
            abi["structs"].append({"name": struct["name"], "init": init, **struct})
        elif match["handle"]:
            abi["handles"].append(match["handle"])
        elif match["alias"]:
            abi["types"][match["alias"]] = match["base"]
        else:
            abi["functions"].append(read_function(match["function"]))
    if inits:
        raise HeaderError(f"INIT macros of no struct: {', '.join(inits)}")
    known = {"void", "char", *SIZES, *abi["types"], *abi["handles"], *(s["name"] for s in abi["structs"])}
    for function in abi["functions"]:
        for type_ in [function["returns"], *(p["type"] for p in function["parameters"])]:
            base = re.sub(r"\bconst\b|\*", "", type_).strip()
            if base not in known:
                raise HeaderError(f"{function['name']}: type {type_}")
    version = abi["constants"]["MLA_VERSION_STRING"]
    return {"library": f"libmla_loader.so.{version.split('.')[0]}", "version": version, **abi}


def to_json(abi):
    """Indented, with a field, parameter list or constant a line."""
    def line(value):
        return json.dumps(value)

    def block(items, indent):
        return "[\n" + ",\n".join(" " * (indent + 2) + item for item in items) + "\n" + " " * indent + "]"

    out = ["{", f'  "library": {line(abi["library"])},', f'  "version": {line(abi["version"])},',
           f'  "handles": {line(abi["handles"])},', '  "types": {']
    out.append(",\n".join(f"    {line(k)}: {line(v)}" for k, v in abi["types"].items()))
    out += ["  },", '  "constants": {']
    out.append(",\n".join(f"    {line(k)}: {line(v)}" for k, v in abi["constants"].items()))
    out += ["  },", '  "structs": [']
    out.append(",\n".join(
        f'    {{"name": {line(s["name"])}, "size": {s["size"]}, "init": {line(s["init"])}, "fields": '
        + block([line(f) for f in s["fields"]], 4) + "}" for s in abi["structs"]))
    out += ["  ],", '  "functions": [']
    out.append(",\n".join(
        f'    {{"name": {line(f["name"])}, "returns": {line(f["returns"])}, "parameters": {line(f["parameters"])}}}'
        for f in abi["functions"]))
    out += ["  ]", "}"]
    return "\n".join(out) + "\n"


CTYPES = {"uint32_t": "c_uint32", "int32_t": "c_int32", "uint64_t": "c_uint64", "int64_t": "c_int64",
          "float": "c_float", "void*": "c_void_p", "char*": "c_void_p", "const char*": "c_char_p"}


def to_python(abi):
    def class_name(struct):
        return "".join(word.capitalize() for word in struct.removeprefix("mla_").split("_"))

    structs = {s["name"]: class_name(s["name"]) for s in abi["structs"]}

    def ctype(type_, out=False):
        type_ = abi["types"].get(type_, type_)
        if type_ in CTYPES:
            return CTYPES[type_]
        base = re.sub(r"^const |\*.*$", "", type_)
        stars = type_.count("*")
        if base in structs and stars == 1:
            return f"POINTER({structs[base]})"
        if base in SIZES and stars == 1:
            return f"POINTER({CTYPES[base]})"
        return "c_void_p" if stars == 1 else "POINTER(c_void_p)"

    out = ['# SPDX-License-Identifier: Apache-2.0', '#',
           '# Generated by loader/tools/make_abi.py from loader/include/mla_loader.h; not to be edited.',
           '"""The C ABI of libmla_loader.so for ctypes: constants, structs, and bind(). Zero is the default of',
           'every field, and struct_size is set."""', 'import ctypes',
           'from ctypes import POINTER, c_char_p, c_float, c_int32, c_int64, c_uint32, c_uint64, c_void_p', '']
    out += [f"{name} = {value!r}".replace("'", '"') for name, value in abi["constants"].items()]
    out += ['', '', 'class _Struct(ctypes.Structure):', '    def __init__(self, **fields):',
            '        super().__init__(ctypes.sizeof(self), **fields)']
    for s in abi["structs"]:
        out += ['', '', f'class {structs[s["name"]]}(_Struct):', '    _fields_ = [']
        out += [f'        ("{f["name"]}", {ctype(f["type"])}),' for f in s["fields"]]
        out += ['    ]']
    out += ['', '', '# Name: (type of the result, types of the parameters)', 'FUNCTIONS = {']
    for f in abi["functions"]:
        parameters = ", ".join(ctype(p["type"]) for p in f["parameters"])
        out += [f'    "{f["name"]}": ({ctype(f["returns"])}, [{parameters}]),']
    out += ['}', '', '', f'def bind(path="{abi["library"]}"):',
            '    """Loads the library, with types for every function."""',
            '    library = ctypes.CDLL(path)', '    for name, (result, parameters) in FUNCTIONS.items():',
            '        function = getattr(library, name)', '        function.restype = result',
            '        function.argtypes = parameters', '    return library']
    return "\n".join(out) + "\n"


def to_probe(abi):
    out = ["#include <stddef.h>", '#include "mla_loader.h"',
           "#define CHECK(name, condition) typedef char check_##name[(condition) ? 1 : -1]"]
    for s in abi["structs"]:
        out.append(f'CHECK({s["name"]}, sizeof({s["name"]}) == {s["size"]});')
        for f in s["fields"]:
            out.append(f'CHECK({s["name"]}_{f["name"]}, offsetof({s["name"]}, {f["name"]}) == {f["offset"]} && '
                       f'sizeof((({s["name"]}*)0)->{f["name"]}) == {f["size"]});')
    for name, value in abi["constants"].items():
        if isinstance(value, int):
            out.append(f"CHECK({name}_, {name} == {value}u);")
    for i, f in enumerate(abi["functions"]):
        parameters = ", ".join(p["type"] for p in f["parameters"]) or "void"
        out.append(f'{f["returns"]} (*function_{i})({parameters}) = {f["name"]};')
    return "\n".join(out) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--probe", action="store_true", help="print a C program that proves the layouts")
    parser.add_argument("--header", type=pathlib.Path, default=HEADER)
    arguments = parser.parse_args()
    try:
        abi = read_header(arguments.header.read_text())
    except HeaderError as error:
        print(f"{arguments.header}: {error}", file=sys.stderr)
        return 2
    if arguments.probe:
        print(to_probe(abi), end="")
        return 0
    stale = 0
    written = [(JSON_FILE, to_json(abi)), (PYTHON_FILE, to_python(abi))]
    written += [(ROOT / path, make(abi)) for path, make in abi_languages.BINDINGS.items()]
    for path, text in written:
        if not arguments.check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            print(f"{path} is not what {arguments.header.name} says: run loader/tools/make_abi.py")
            stale = 1
    return stale


if __name__ == "__main__":
    sys.exit(main())
