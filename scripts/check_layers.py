#!/usr/bin/env python3
"""Checks what a compiler does not: the direction of includes, names of files, lengths, and sizes of classes."""

import pathlib
import re
import sys

from class_sizes import class_sizes

ROOT = pathlib.Path(__file__).resolve().parent.parent
LAYERS = ["base", "partition", "memory", "device", "comm", "persist", "backwards", "deferred", "parallel", "units",
          "gradients", "operators", "update", "engine", "weights", "data", "analysis"]
USERS = ["models", "planner", "cli", "examples", "python"]
ALSO_USES = {"models": ["base"], "planner": ["base", "partition"], "cli": ["base", "partition", "memory", "persist"],
             "python": ["partition"]}  # beside the public headers
TORCH_FREE = ["base", "partition", "planner"]
# All of them; of other layers, what lies in a folder `torch`.
WITH_TORCH = [each for each in LAYERS[LAYERS.index("backwards"):] if each != "analysis"]
LONGEST_FILE, LONGEST_FUNCTION = 500, 120
MOST_FIELDS, MOST_METHODS = 15, 40
# Classes that have more, and why. None is added.
LARGE_CLASSES = {
    "include/zero/engine.h Engine": "all that a program calls",
    "include/zero/plan.h Plan": "all that a program chooses",
    "src/analysis/log.h MemoryLog": "one stretch of events and what was settled before it, under one lock",
    "src/gradients/gradients.h Gradients": "every way from a hook to where a gradient is held",
    "src/units/unit.h Unit": "one unit, as operators, scopes, updates and loads meet it",
}
INCLUDE = re.compile(r'^\s*#include\s+([<"])([^>"]+)[>"]')
PLACEMENT = re.compile(r"(\]|\brow_?)\.(rest|between)\b|\bPlacement::")  # of a row, which src/partition alone reads
CONTAINER = re.compile(r"(inline )?(namespace|class|struct|enum|extern)\b")


def includes(lines):
    for number, line in enumerate(lines, 1):
        if match := INCLUDE.match(line):
            yield number, match[1] == '"', match[2]


def border_faults(path, lines):
    """In src/, what is built without LibTorch includes nothing of it, and nothing of what is built with it."""
    if path.parts[0] != "src" or path.parts[1] in WITH_TORCH or path.parts[2] == "torch":
        return
    for number, quoted, name in includes(lines):
        parts = name.split("/")
        torch = parts[0] in WITH_TORCH or parts[1:2] == ["torch"] if quoted else parts[0] in ("torch", "ATen", "c10")
        if torch:
            yield f"{path}:{number}: is built without LibTorch, yet includes {name}: move it to a folder `torch`"


def layer_faults(path, lines):
    """`path` is relative to the repository: src/<layer>/..., include/zero/..., or a user's folder."""
    user = path.parts[0]
    layer = path.parts[1] if user == "src" else None
    for number, quoted, name in includes(lines):
        top = name.split("/")[0]
        if (layer or user) in TORCH_FREE and top in ("torch", "ATen", "c10"):
            yield f"{path}:{number}: {layer or user}/ knows no torch, yet includes {name}"
        if not quoted:
            continue
        if layer and layer not in LAYERS:
            yield f"{path}: src/{layer} is no layer; LAYERS in scripts/check_layers.py lists them"
        elif layer and top in LAYERS and LAYERS.index(top) > LAYERS.index(layer):
            yield f"{path}:{number}: {layer}/ includes {name} from above it"
        elif user in ("src", "include") and top in USERS:
            yield f"{path}:{number}: the library includes {name}"
        elif user == "include" and top != "zero":
            yield f"{path}:{number}: a public header includes {name}, which is not public"
        elif user in USERS and top in LAYERS and top not in ALSO_USES.get(user, []):
            yield f"{path}:{number}: {user}/ uses the public headers zero/..., not {name}"


def placement_faults(path, lines):
    if path.parts[:2] == ("src", "partition") or path.parts[0] not in ("src", *USERS):
        return
    for number, line in enumerate(lines, 1):
        if PLACEMENT.search(line.split("//")[0]):
            yield f"{path}:{number}: asks a row for its placement; partition/routes.h says what follows from it"


def too_long(path, lines):
    if len(lines) > LONGEST_FILE:
        yield f"{path}: {len(lines)} lines, at most {LONGEST_FILE}"


def length_faults(path, lines):
    yield from too_long(path, lines)
    start = None  # functions of a namespace: from a line that starts at the margin to its "}"
    for number, line in enumerate(lines, 1):
        if line.endswith("{") and line[0] not in " }#/" and not CONTAINER.match(line):
            start = number
        elif line.startswith("}") and start:
            if number - start > LONGEST_FUNCTION:
                yield f"{path}:{start}: a function of {number - start} lines, at most {LONGEST_FUNCTION}"
            start = None


def class_faults(path, text, large):
    """Adds to `large` the classes that are larger than others may be."""
    for name, fields, methods in class_sizes(text):
        if fields <= MOST_FIELDS and methods <= MOST_METHODS:
            continue
        large.add(f"{path} {name}")
        if f"{path} {name}" not in LARGE_CLASSES:
            yield (f"{path}: class {name} has {fields} fields and {methods} methods, at most {MOST_FIELDS} and "
                   f"{MOST_METHODS}: divide it")


def name_faults():
    """A name means one thing: what is said of it in one folder is not found in another."""
    folders = {}
    for path in sorted(each for top in ("src", *USERS) for each in (ROOT / top).rglob("*")):
        if path.suffix in (".h", ".cpp", ".cu"):
            folders.setdefault(path.stem, set()).add(path.parent.relative_to(ROOT))
    for stem, found in sorted(folders.items()):
        if len(found) > 1:
            yield f"{stem}: a file in {' and in '.join(map(str, sorted(found)))}: rename one"


def main():
    faults, large = [*name_faults()], set()
    for folder in ["src", "include", *USERS, "tests", "bench"]:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in (".h", ".cpp", ".cu", ".py"):
                continue
            text = path.read_text()
            lines = text.splitlines()
            relative = path.relative_to(ROOT)
            if path.suffix == ".py":
                faults += too_long(relative, lines)
            else:
                faults += [*layer_faults(relative, lines), *border_faults(relative, lines)]
                faults += placement_faults(relative, lines)
                faults += length_faults(relative, lines)
                if folder not in ("tests", "bench"):
                    faults += class_faults(relative, text, large)
    faults += [f"{each}: is no longer large: take it from LARGE_CLASSES" for each in LARGE_CLASSES.keys() - large]
    print(*faults, sep="\n", end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
