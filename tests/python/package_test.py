"""That the stub for type checkers tells what the module has."""

from __future__ import annotations

import ast
import inspect
import re
import unittest
from pathlib import Path

import zero
from zero import _native


def stub() -> ast.Module:
    return ast.parse(Path(_native.__file__).with_name("_native.pyi").read_text())


def names_of(arguments: ast.arguments) -> list[str]:
    named = [argument.arg for argument in arguments.posonlyargs + arguments.args + arguments.kwonlyargs]
    return [name for name in named if name != "self"]


def told_by(function: object) -> list[str]:
    """Names of the parameters, from the first line of what pybind11 says of a function."""
    signature = re.match(r"\w+\((.*)\) -> ", function.__doc__ or "")
    assert signature, function
    depth, words, word = 0, [], ""
    for letter in signature[1] + ",":
        depth += (letter in "[({") - (letter in "])}")
        if letter == "," and depth == 0:
            words.append(word.strip())
            word = ""
        else:
            word += letter
    names = [re.split(r"[:=]", each)[0].strip() for each in words]
    return [name for name in names if name not in ("self", "*", "")]


class Stub(unittest.TestCase):
    def compare(self, told: ast.FunctionDef, function: object) -> None:
        names = names_of(told.args)
        if function.__doc__ and not re.search(r"\barg\d", function.__doc__.split("\n")[0]):
            self.assertEqual(told_by(function), names, told.name)

    def test_has_the_names_of_the_module_and_no_others(self) -> None:
        classes = {node.name: node for node in stub().body if isinstance(node, ast.ClassDef)}
        functions = {node.name: node for node in stub().body if isinstance(node, ast.FunctionDef)}
        public = {name for name in dir(_native) if not name.startswith("_")}
        self.assertEqual({name for name in classes | functions if not name.startswith("_")}, public)
        for name, node in functions.items():
            self.compare(node, getattr(_native, name))
        for name, node in classes.items():
            if name.startswith("_") or issubclass(getattr(_native, name), Exception):
                continue
            methods = {each.name: each for each in node.body if isinstance(each, ast.FunctionDef)}
            of_optimizers = any(getattr(each, "id", "") == "_Optimizer" for each in node.bases)
            base = {"lr", "weight_decay"} if of_optimizers else set()
            there = {each for each in vars(getattr(_native, name)) if not each.startswith("_")}
            self.assertEqual({each for each in methods if not each.startswith("_")} | base, there, name)
            for each, method in methods.items():
                if not method.decorator_list:
                    with self.subTest(f"{name}.{each}"):
                        self.compare(method, getattr(getattr(_native, name), each))

    def test_errors_are_named_as_programs_know_them(self) -> None:
        with self.assertRaises(zero.ConfigError) as caught:
            zero.init(transport="pigeon")
        self.assertEqual(f"{type(caught.exception).__module__}.{type(caught.exception).__name__}", "zero.ConfigError")

    def test_all_is_what_the_package_has(self) -> None:
        self.assertEqual(len(zero.__all__), len(set(zero.__all__)))
        for name in zero.__all__:
            self.assertTrue(hasattr(zero, name), name)
            self.assertTrue(inspect.getdoc(getattr(zero, name)) or not inspect.isfunction(getattr(zero, name)), name)
