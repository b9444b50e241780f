# SPDX-License-Identifier: Apache-2.0
"""Checks manifest.schema.json with an independent validator (python3-jsonschema).

schema_test.py SCHEMA corpus GOOD BROKEN   the good manifest passes, every broken one does not, nor
                                           does the good one with a field left out or of another type
schema_test.py SCHEMA manifest FILE...     the given manifests pass
"""
import copy
import json
import sys

try:
    import jsonschema
except ImportError:
    sys.exit("python3-jsonschema is missing: install Debian's python3-jsonschema")


def apply(document, patch):
    """RFC 6902, as far as the corpus uses it."""
    for step in patch:
        keys = [key.replace("~1", "/").replace("~0", "~") for key in step["path"].split("/")[1:]]
        at = document
        for key in keys[:-1]:
            at = at[int(key)] if isinstance(at, list) else at[key]
        last = int(keys[-1]) if isinstance(at, list) else keys[-1]
        if step["op"] == "remove":
            del at[last]
        elif step["op"] == "replace":
            at[last]  # must be there
            at[last] = step["value"]
        else:
            sys.exit("unknown operation " + step["op"])
    return document


def load(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def leaves(value, path, optional):
    """(path, whether it may be absent) of every member of the objects within."""
    if isinstance(value, dict):
        for key, child in value.items():
            here = f"{path}/{key}"
            if key == "requires":
                continue  # a list: see the corpus
            may_be_absent = optional or key == "features"
            yield here, may_be_absent
            yield from leaves(child, here, may_be_absent)
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from leaves(child, f"{path}/{index}", False)


def main():
    schema = load(sys.argv[1])
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    failures = []

    def check(name, document, wanted):
        errors = [f"{error.json_path}: {error.message}" for error in validator.iter_errors(document)]
        if wanted != (not errors):
            failures.append(f"{name}: " + ("; ".join(errors) if wanted else "passes; expected a refusal"))

    if sys.argv[2] == "manifest":
        files = sys.argv[3:]
        if not files:
            sys.exit("no manifest given")
        for path in files:
            check(path, load(path), True)
        print(len(files), "manifests validated")
    else:
        good = load(sys.argv[3])
        check("good", good, True)
        more = copy.deepcopy(good)
        more["later"] = {"a": 1}
        more["kernels"][0]["config"]["later"] = [1]
        more["format"]["minor"] = 3
        check("unknown keys", more, True)
        broken = load(sys.argv[4])
        for item in broken:
            # Some rules lie beyond JSON Schema; there the schema must let the manifest pass.
            check(item["name"], apply(copy.deepcopy(good), item["patch"]), not item["schema"])
        refused = sum(item["schema"] for item in broken)
        print(len(broken), "broken manifests,", refused, "of them refused by the schema")
        count = 0
        for path, optional in leaves(good, "", False):
            wrong = [{"op": "replace", "path": path, "value": {} if path == "/kernels" else []}]
            gone = [{"op": "remove", "path": path}]
            for patch, wanted in ((wrong, False), (gone, optional)):
                check(str(patch), apply(copy.deepcopy(good), patch), wanted)
                count += 1
        if count < 200:
            failures.append(f"only {count} fields were left out or changed; expected 200 and more")
        print(count, "fields left out or of another type")
    for failure in failures:
        print("FAILED", failure)
    sys.exit(1 if failures else 0)


main()
