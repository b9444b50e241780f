#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make_abi.py refuses what it does not understand, and notices a stale file."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOL = ROOT / "loader/tools/make_abi.py"
HEADER = (ROOT / "loader/include/mla_loader.h").read_text()


def run(header, *options):
    with tempfile.NamedTemporaryFile("w", suffix=".h") as file:
        file.write(header)
        file.flush()
        result = subprocess.run([sys.executable, TOOL, "--header", file.name, *options], capture_output=True, text=True)
        return result.returncode, (result.stdout + result.stderr).replace(file.name + ": ", "")


class MakeAbi(unittest.TestCase):
    def refuses(self, old, new, sentence):
        self.assertIn(old, HEADER)
        code, text = run(HEADER.replace(old, new, 1), "--probe")
        self.assertEqual(code, 2, text)
        self.assertEqual(text[:len(sentence)], sentence)

    def test_takes_the_header(self):
        code, text = run(HEADER, "--probe")
        self.assertEqual(code, 0, text)
        self.assertIn("CHECK(mla_launch_args_error, offsetof(mla_launch_args, error) == 288", text)

    def test_refusals(self):
        flags = "typedef struct mla_open_options {\n  uint32_t struct_size;\n  uint32_t flags;"
        self.refuses(flags, flags[:-1] + "[2];", "mla_open_options: cannot read the field: uint32_t flags[2]\n")
        self.refuses(flags, flags.replace("uint32_t flags", "unsigned flags"), "mla_open_options.flags: type unsigned\n")
        self.refuses(flags, flags.replace("uint32_t flags;", ""), "mla_open_options.manifest_sha256: padding before it\n")
        self.refuses(flags, flags + " uint64_t more;",
                     "mla_open_options: no INIT macro, or one with 5 values for 6 fields\n")
        self.refuses("#define MLA_SUCCESS 0", "#define MLA_SUCCESS (1 - 1)", "constant with the value (1 - 1)\n")
        self.refuses("MLA_API uint32_t mla_version(void);", "MLA_API unsigned mla_version(void);",
                     "mla_version: type unsigned\n")
        self.refuses("typedef int32_t mla_status;", "enum mla_status { MLA_OK };", "cannot read: enum mla_status {")

    def test_stale(self):
        code, text = run(HEADER.replace("#define MLA_LAUNCH_PDL 0x1u", "#define MLA_LAUNCH_PDL 0x4u"), "--check")
        self.assertEqual(code, 1, text)
        self.assertIn("loader/abi.json is not what", text)
        for path in ("mla_abi.py", "rust/mla_abi.rs", "go/mla_abi.go", "java/MlaAbi.java", "lua/mla_abi.lua",
                     "ruby/mla_abi.rb"):
            self.assertIn(f"examples/{path} is not what", text)


if __name__ == "__main__":
    unittest.main()
