"""Kernel names, demangled as nsys shows them: what the function is, and what is only a template argument."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attrib.categories import category_of
from attrib.names import function_name, label, split, template_arguments

CASES = {
    "void at::native::copy_kernel<(int)4, Foo<int>>(int, T1)": ("at::native::copy_kernel", ["(int)4", "Foo<int>"]),
    "void mul_mat_vec_q<(ggml_type)12, (int)1, (bool)1>(const void *)": (
        "mul_mat_vec_q",
        ["(ggml_type)12", "(int)1", "(bool)1"],
    ),
    "void k_bin_bcast<&op_add, float, float, float>(const T2 *, T3 *)": (
        "k_bin_bcast",
        ["&op_add", "float", "float", "float"],
    ),
    "rms_norm": ("rms_norm", []),
    "_Z8rms_normPf": ("_Z8rms_normPf", []),
    "triton_poi_fused_add_0d1d2de": ("triton_poi_fused_add_0d1d2de", []),
    "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x4_tn": (
        "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x4_tn",
        [],
    ),
    "": ("", []),
    "   ": ("", []),
    "foo()": ("foo", []),
    "void foo<>()": ("foo", []),
    "void (anonymous namespace)::softmax<float>(float *)": ("(anonymous namespace)::softmax", ["float"]),
    "void at::native::(anonymous namespace)::cat<int>(int)": ("at::native::(anonymous namespace)::cat", ["int"]),
    "void at::native::<unnamed>::CatArrayBatchedCopy<at::native::<unnamed>::OpaqueType<(int)2>, int>(char *)": (
        "at::native::<unnamed>::CatArrayBatchedCopy",
        ["at::native::<unnamed>::OpaqueType<(int)2>", "int"],
    ),
    "void <unnamed>::layer_norm_kernel<float>(int)": ("<unnamed>::layer_norm_kernel", ["float"]),
    # a lambda and a function pointer among the arguments, whose own brackets and arrows close nothing
    "void run<main::{lambda(int)#1}, (bool)1>(T1)": ("run", ["main::{lambda(int)#1}", "(bool)1"]),
    "void run<auto f(int)->decltype(g<int>()), 3>(T1)": ("run", ["auto f(int)->decltype(g<int>())", "3"]),
    "void f<&op_add, int (*)(float, float)>(int (*)(float, float), T2)": (
        "f",
        ["&op_add", "int (*)(float, float)"],
    ),
    # arguments of an enclosing class are not the function's
    "void cutlass::Gemm<Shape<128, 64>>::run(int)": ("cutlass::Gemm::run", []),
    "void cutlass::Gemm<Shape<128, 64>>::run<float>(int)": ("cutlass::Gemm::run", ["float"]),
    "std::enable_if<true, void>::type scale<float>(float *)": ("scale", ["float"]),
    # operators are part of the name
    "ns::A & ns::operator<<<int>(ns::A &, int)": ("ns::operator<<", ["int"]),
    "ns::A & ns::operator<<(ns::A &, int)": ("ns::operator<<", []),
    "bool ns::operator<(ns::A, ns::A)": ("ns::operator<", []),
    "bool ns::operator><float>(ns::A)": ("ns::operator>", ["float"]),
    "ns::A ns::P::operator->()": ("ns::P::operator->", []),
    "void Functor<int>::operator()(float *) const": ("Functor::operator()", []),
    "void Functor<int>::operator()<float>(float *) const": ("Functor::operator()", ["float"]),
    "void my_operator<int>(float *)": ("my_operator", ["int"]),
    # cut off or unbalanced: whatever comes before the first bracket is still the name
    "void ns::cut<Foo<int, Bar<": ("ns::cut", ["Foo<int, Bar<"]),
    "void ns::cut(int, Foo<": ("ns::cut", []),
    "void odd<int>>(float)": ("odd>", ["int"]),
}


@pytest.mark.parametrize("demangled", CASES)
def test_name_and_template_arguments(demangled: str) -> None:
    name, arguments = CASES[demangled]
    assert function_name(demangled) == name
    assert template_arguments(demangled) == arguments


def test_parameters_are_apart() -> None:
    assert split("void f<&op_add, int>(int (*)(float, T<2>), T2)") == ("f", "&op_add, int", "int (*)(float, T<2>), T2")


ARGUMENTS = st.recursive(
    st.sampled_from(["int", "(int)4", "&op_add", "flash_attn", "rope<1>", "{lambda(int)#1}", "x[3]", "f(int)"]),
    lambda inner: st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"T<{', '.join(parts)}>"),
    max_leaves=8,
)


@given(st.lists(ARGUMENTS, min_size=1, max_size=4), st.sampled_from(["", "void "]), st.sampled_from(["", "a::b::"]))
def test_a_function_name_never_sees_template_arguments(arguments: list[str], returned: str, scope: str) -> None:
    text = f"{returned}{scope}elementwise<{', '.join(arguments)}>(float *, T2<rms>)"
    assert function_name(text) == f"{scope}elementwise"
    assert template_arguments(text) == arguments
    assert category_of(function_name(text)) == "elementwise"


@given(st.text(alphabet="ab<>()[]{},:- &*operat", max_size=60))
def test_any_text_has_a_name_and_a_label(text: str) -> None:
    name, arguments, parameters = split(text)
    assert len(name) + len(arguments) + len(parameters) <= len(text)
    assert len(label(text, "short", 20)) <= 20


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("void ns::huge<" + "Tag<int>, " * 52_429 + "int>(float *)", id="flat"),
        pytest.param("void ns::huge<" + "T<" * 132_000 + "int" + "> " * 132_000 + ">(float *)", id="deep"),
        pytest.param("void ns::huge<" + "(" * 524_288, id="open"),
        pytest.param("<" * 524_288, id="only brackets"),
        pytest.param("void ns::huge<" + "f(int)->g, " * 47_663 + "int>(float *)", id="arrows"),
        pytest.param("operator<" * 58_255, id="operators"),
        pytest.param("(anonymous namespace)::" * 22_800 + "huge<int>()", id="namespaces"),
    ],
)
def test_half_a_megabyte_takes_linear_time(text: str) -> None:
    assert len(text) >= 512 * 1024
    times = []
    for _ in range(2):
        begin = time.perf_counter()
        name = function_name(text)
        times.append(time.perf_counter() - begin)
    assert min(times) < 0.5
    assert "huge" in name or text[0] in "<o"
    begin = time.perf_counter()
    assert len(label(text, "short")) <= 96
    assert time.perf_counter() - begin < 2


def test_labels() -> None:
    assert label("void ns::f<(int)128, (bool)1, float>(T *)", "f") == "f<128,1,float>"
    assert label("", "short_name") == "short_name"
    assert label("", "x" * 100) == "x" * 95 + "…"
    assert label("void f<(int)>(T *)", "f") == "f<(int)>"
    assert label("void f<Foo<1, 2>, g>()", "f", 10) == "f<Foo<1, …"
    assert label("void Functor<int>::operator()(float *) const", "operator()") == "operator()"


def test_a_name_that_every_kernel_of_a_library_has_keeps_its_scope() -> None:
    gemv = "std::enable_if<!T7, void>::type internal::gemvx::kernel<int, int, __nv_bfloat16, (bool)0>(T13)"
    assert label(gemv, "kernel") == "gemvx::kernel<int,int,__nv_bfloat16,0>"
    assert label("void cutlass::device_kernel<flash::Fwd<(int)1>>(T1)", "device_kernel") == (
        "cutlass::device_kernel<flash::Fwd<(int)1>>"
    )
    assert label("void at::native::reduce_kernel<(int)512>(T1)", "reduce_kernel") == "reduce_kernel<512>"
    assert label("kernel", "kernel") == "kernel"
