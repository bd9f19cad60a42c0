"""The readable short form of mangled names."""

from __future__ import annotations

import random

import pytest

from attncheck.doctor.queries.symbols import demangle_hint


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("_ZNK3c106SymInt6sym_neERKS0_", "c10::SymInt::sym_ne(…)"),
        ("_ZN3c104cuda12device_countEv", "c10::cuda::device_count(…)"),
        ("_ZN3c105ErrorC2ENS_14SourceLocationESs", "c10::Error::Error(…)"),
        ("_ZN3c105ErrorD1Ev", "c10::Error::~Error(…)"),
        ("_ZN3c104cuda20CUDACachingAllocator9allocatorE", "c10::cuda::CUDACachingAllocator::allocator"),
        ("_ZTIN3c105ErrorE", "typeinfo for c10::Error"),
        ("_ZTVN5torch8autograd4NodeE", "vtable for torch::autograd::Node"),
        ("_ZNK2at10TensorBase8data_ptrIiEEPT_v", "at::TensorBase::data_ptr<…>(…)"),
        ("_ZNK2at10TensorBase8data_ptrIN3c108BFloat16ELb1ELi64EEEPT_v", "at::TensorBase::data_ptr<…>(…)"),
        (
            "_ZN8pybind116detail11type_casterIN2at6TensorEvE4loadENS_6handleEb",
            "pybind11::detail::type_caster<…>::load(…)",
        ),
        ("_ZNSt10shared_ptrIN3c104TypeEED2Ev", "std::shared_ptr<…>::~shared_ptr(…)"),
        ("_Z9mha_fwd_vv", "mha_fwd_v(…)"),
        ("THPVariable_Wrap", "THPVariable_Wrap"),
        ("_Z", "_Z"),
        ("_ZN3c10", "c10"),
        ("_ZN99c10E", "_ZN99c10E"),
        ("_ZN2atlsERSoRKNS_6TensorE", "_ZN2atlsERSoRKNS_6TensorE"),
    ],
)
def test_the_name_is_recognisable(name: str, expected: str) -> None:
    assert demangle_hint(name) == expected


def test_damaged_names_are_no_error() -> None:
    source = random.Random(7)
    for _ in range(5000):
        demangle_hint("_Z" + "".join(source.choices("NKSTILEXJFDCv_0123456789c10at", k=source.randint(0, 60))))
