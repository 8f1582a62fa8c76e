"""What the rule files say of kernels as traces name them: one file and one category each, whatever the order."""

from __future__ import annotations

import csv

import pytest

from attrib import rules
from attrib.categories import order
from attrib.names import function_name
from tests.helpers import data

with (data.DATA / "kernels.tsv").open(newline="", encoding="utf-8") as file:
    CASES = [tuple(row) for row in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)][1:]
"""(rule file, category, demangled name) of kernels as nsys shows them."""


def matching(full: str) -> dict[str, str]:
    """The first rule of each file that matches a kernel."""
    function = function_name(full)
    found = {book.name: book.kernel(function, full) for book in rules.builtin_rules()}
    return {name: rule.category for name, rule in found.items() if rule is not None}


@pytest.mark.parametrize(("book", "category", "full"), CASES)
def test_a_known_kernel(book: str, category: str, full: str) -> None:
    found = rules.match(rules.builtin_rules(), function_name(full), full)
    assert found is not None
    assert (found[0].name, found[1].category) == (book, category)
    assert rules.category(rules.builtin_rules(), function_name(full), full) == category


@pytest.mark.parametrize(("book", "category", "full"), CASES)
def test_files_that_know_the_same_kernel_agree_or_have_an_order(book: str, category: str, full: str) -> None:
    ranks = {rules_.name: rules_.order for rules_ in rules.builtin_rules()}
    for other, said in matching(full).items():
        assert said == category or ranks[other] > ranks[book], (other, said)


def test_every_rule_is_used_by_a_known_kernel() -> None:
    used = set()
    for _, _, full in CASES:
        function = function_name(full)
        used |= {(book.name, book.kernel(function, full)) for book in rules.builtin_rules()}
    unused = [
        (book.name, place) for book in rules.builtin_rules() for place, rule in enumerate(book.kernels)
        if (book.name, rule) not in used
    ]  # fmt: skip
    assert unused == []


def test_categories_of_rules_are_categories() -> None:
    for book in rules.builtin_rules():
        assert {rule.category for rule in book.kernels} <= set(order()) - {"idle"}
        assert book.about


@pytest.mark.parametrize("name", [n for n in data.NAMES if n.startswith("llama.cpp")])
def test_a_recorded_llama_cpp_trace_is_known_whole(name: str) -> None:
    from attrib.trace import open_trace

    names = open_trace(data.trace(name)).names
    unknown = {
        function for function, full in zip(names.function, names.full, strict=True)
        if rules.match(rules.builtin_rules(), function, full) is None
    }  # fmt: skip
    assert unknown == set()
