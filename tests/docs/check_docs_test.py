#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The checker finds what it is there to find."""
import pathlib
import tempfile
import unittest

import check_docs

SOURCE = "int main() {\n  /* [decode] */\n  f();\n    g();\n  /* [decode] */\n}\n"


class CheckDocs(unittest.TestCase):
    def faults(self, readme, source=SOURCE):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "docs").mkdir()
            (root / "scripts").mkdir()
            (root / "scripts" / "test").write_text("")
            (root / "a.c").write_text(source)
            (root / "README.md").write_text(readme)
            return check_docs.check(root)

    def test_equal_excerpt(self):
        self.assertEqual(self.faults("<!-- from a.c -->\n```c\nf();\n  g();\n```\n"), ([], 1))

    def test_changed_excerpt(self):
        faults, _ = self.faults("<!-- from a.c -->\n```c\nf();\n```\n")
        self.assertEqual(faults, ["README.md: the excerpt of a.c differs from the file"])

    def test_missing_marks(self):
        faults, _ = self.faults("<!-- from a.c -->\n```c\nf();\n```\n", "f();\n")
        self.assertEqual(faults, ["a.c: needs two lines with [decode] around the excerpt"])

    def test_missing_file(self):
        faults, _ = self.faults("<!-- from b.c -->\n```c\nf();\n```\n")
        self.assertEqual(faults, ["README.md: b.c does not exist"])

    def test_links_and_scripts(self):
        faults, _ = self.faults("[a](docs/a.md) [b](a.c#x) [c](https://example.org) scripts/test scripts/gone")
        self.assertEqual(faults, ["README.md: the link to docs/a.md leads nowhere",
                                  "README.md: scripts/gone does not exist"])


if __name__ == "__main__":
    unittest.main()
