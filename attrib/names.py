"""Kernel names: function name, template arguments and a label that fits a table. Pure and linear in the length."""

from __future__ import annotations

import re

_OPEN, _CLOSE = "<([{", ">)]}"
_GENERIC = ("kernel", "Kernel", "Kernel2", "device_kernel", "run")
"""Names that libraries give all their kernels; the scope before them tells which library it is."""
_UNNAMED = ("(anonymous namespace)", "<unnamed>")
_OPERATOR = re.compile(r"(?<!\w)operator(\(\)|\[\]|<=>|<<=?|>>=?|->\*?|<=?|>=?)")
"""Operators that are spelled with brackets, which open and close nothing."""


def function_name(demangled: str) -> str:
    """Qualified function name of a demangled C++ kernel, without return type, template arguments and parameters.

    `void at::native::copy_kernel<(int)4, Foo<int>>(int, T1)` gives `at::native::copy_kernel`.
    """
    name, _, _ = split(demangled)
    return name


def template_arguments(demangled: str) -> list[str]:
    """Top-level template arguments of the function, in order; empty for a plain function."""
    _, arguments, _ = split(demangled)
    return _split_commas(arguments)


def split(demangled: str) -> tuple[str, str, str]:
    """(qualified function name, template arguments, parameters), each without its brackets.

    Template arguments are those of the last name component; those of enclosing classes are dropped from the name.
    Names that are not C++ declarations (a Triton kernel, an extern "C" symbol) come back unchanged.
    """
    text = demangled.strip()
    name: list[str] = []
    arguments = ""
    i = 0
    while i < len(text):
        char = text[i]
        whole = _whole(text, i)
        if whole:
            name.append(whole)
            i += len(whole)
            continue
        if char == "<":
            end = _matching(text, i)
            arguments = text[i + 1 : end]
            i = end + 1
            continue
        if char == "(":
            end = _matching(text, i)
            return _last_word("".join(name)), arguments, text[i + 1 : end]
        if char in ": ":
            arguments = ""
        name.append(char)
        i += 1
    return _last_word("".join(name)), arguments, ""


def label(demangled: str, short: str, width: int = 96) -> str:
    """Short label: the function and, where there are any, its template arguments, cut to `width` characters.

    A function whose own name says nothing keeps the scope before it.
    """
    name, arguments, _ = split(demangled) if demangled else (short, "", "")
    *scopes, name = (name or short).split("::")
    if scopes and name in _GENERIC:
        name = f"{scopes[-1]}::{name}"
    cleaned = ",".join(_value(part) for part in _split_commas(arguments))
    text = f"{name}<{cleaned}>" if cleaned else name
    return text if len(text) <= width else text[: width - 1] + "…"


def _whole(text: str, start: int) -> str:
    """The part of the name at `start` whose brackets are its own: an unnamed namespace or an operator."""
    if text[start] == "o":
        found = _OPERATOR.match(text, start)
        return found.group() if found else ""
    return next((scope for scope in _UNNAMED if text.startswith(scope, start)), "") if text[start] in "(<" else ""


def _value(argument: str) -> str:
    """`(int)128` and `(bool)1` without the cast, which is the same for every instance of a template."""
    if argument.startswith("("):
        return argument[_matching(argument, 0) + 1 :].strip() or argument
    return argument


def _last_word(text: str) -> str:
    """The name itself: what follows the last space outside brackets (the return type goes)."""
    text = text.strip()
    if "(anonymous namespace)" in text:
        marked = text.replace("(anonymous namespace)", "\0")
        return marked.rsplit(" ", 1)[-1].replace("\0", "(anonymous namespace)")
    return text.rsplit(" ", 1)[-1]


def _matching(text: str, start: int) -> int:
    """Index of the bracket that closes the one at `start`; the end of the text when it is cut off."""
    depth = 0
    for i in range(start, len(text)):
        char = text[i]
        if char in _OPEN:
            depth += 1
        elif char in _CLOSE and text[i - 1 : i + 1] != "->":
            depth -= 1
            if depth == 0:
                return i
    return len(text)


def _split_commas(text: str) -> list[str]:
    parts: list[str] = []
    depth = begin = 0
    for i, char in enumerate(text):
        if char in _OPEN:
            depth += 1
        elif char in _CLOSE and text[i - 1 : i + 1] != "->":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[begin:i].strip())
            begin = i + 1
    tail = text[begin:].strip()
    return [*parts, tail] if tail else parts
