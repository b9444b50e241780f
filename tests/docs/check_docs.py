#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks README.md and docs/: code that comes from a file is what that file says, links lead
somewhere, scripts exist.

A fenced block after a line `<!-- from examples/x -->` must be the text between the two `[decode]`
marks of that file, with its indent removed.
"""
import pathlib
import re
import sys
import textwrap

EXCERPT = re.compile(r"^<!-- from (\S+) -->\n+```\w*\n(.*?)^```$", re.M | re.S)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
SCRIPT = re.compile(r"\bscripts/([a-z_-]+)\b(?![./])")


def excerpt_of(text):
    """The lines between the two marks, dedented; None without marks."""
    parts = re.split(r"^.*\[decode\].*\n", text, flags=re.M)
    return textwrap.dedent(parts[1]) if len(parts) == 3 else None


def check(root):
    """Sentences about what is wrong, and the number of excerpts compared."""
    faults, excerpts = [], 0
    pages = [root / "README.md", *sorted((root / "docs").glob("*.md"))]
    for page in pages:
        name = page.relative_to(root)
        text = page.read_text()
        for source, block in EXCERPT.findall(text):
            excerpts += 1
            file = root / source
            if not file.is_file():
                faults.append(f"{name}: {source} does not exist")
                continue
            want = excerpt_of(file.read_text())
            if want is None:
                faults.append(f"{source}: needs two lines with [decode] around the excerpt")
            elif want != block:
                faults.append(f"{name}: the excerpt of {source} differs from the file")
        for target in LINK.findall(text):
            if not re.match(r"[a-z]+:", target) and not (page.parent / target).exists():
                faults.append(f"{name}: the link to {target} leads nowhere")
        for script in SCRIPT.findall(text):
            file = root / "scripts" / script
            if not file.exists():
                faults.append(f"{name}: scripts/{script} does not exist")
    return faults, excerpts


def main():
    faults, excerpts = check(pathlib.Path(sys.argv[1]))
    if excerpts < 2:
        faults.append(f"README.md: {excerpts} excerpts of examples; the C and the Python one are expected")
    for fault in faults:
        print(fault)
    print(f"{excerpts} excerpts compared, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
