"""What processes compare of a compiled program's text, and what is left out."""

from __future__ import annotations

import pytest

from jaxnb.compat.jax_programs import comparable

MAPPED = [(1 << 32, 1 << 33), (0x7F00_0000_0000, 0x7F00_1000_0000)]
ADDRESS = 0x7F00_0000_1230

CALL = 'tmp_1 = f32[] custom-call(f32[] tmp_0), custom_call_target="{}", backend_config={}'
FUSED = "  tmp_1 = f32[8]{0} fusion(f32[8]{0} tmp_0), kind=kLoop, backend_config="


def compared(text: str) -> str:
    return comparable(text, lambda: MAPPED)


def test_names_of_modules_and_computations_are_left_out() -> None:
    text = "HloModule {}, is_scheduled=true\n\n{} {{\n  ROOT tmp_0 = x\n}}\n\nENTRY {} {{\n}}\n"
    first, second = text.format("jit_f", "add.clone", "main.1"), text.format("jit_g", "r_2.0", "m")
    assert compared(first) == compared(second)
    assert compared(first).startswith(", is_scheduled=true")
    assert compared(first) != compared(first.replace("ENTRY ", ""))


@pytest.mark.parametrize(
    ("target", "config", "other", "is_same"),
    [
        ("lapack_strsm_ffi", "{uplo = 76 : ui8}", "{uplo = 85 : ui8}", False),
        ("xla_ffi_python_cpu_callback", "{index = 0 : ui64}", "{index = 3 : ui64}", True),
        ("xla_ffi_python_gpu_callback", "{index = 0 : ui64}", "{index = 3 : ui64}", True),
        ("xla_buffer_python_cpu_callback", "{index = 0 : ui64}", "{index = 3 : ui64}", True),
        ("my_ffi", "{index = 0 : ui64}", "{index = 3 : ui64}", False),
        ("mpi_ffi", f"{{comm = {ADDRESS} : i64}}", f"{{comm = {(1 << 32) + 8} : i64}}", True),
        ("mpi_ffi", f"{{comm = {ADDRESS} : i64}}", "{comm = 7 : i64}", False),
        ("seeded", "{seed = 99887766554433 : i64}", "{seed = 99887766554434 : i64}", False),
        ("seeded", "{seed = 4294967296.5 : f64}", "{seed = 4294967297.5 : f64}", False),
        ("opaque", '"some {\\" text"', '"other text"', False),
    ],
)
def test_attributes_of_calls(target: str, config: str, other: str, is_same: bool) -> None:
    texts = [compared(CALL.format(target, each)) for each in (config, other)]
    assert (texts[0] == texts[1]) == is_same


@pytest.mark.parametrize(
    ("config", "other", "is_same"),
    [
        ('{"outer_dimension_partitions":["2"]}', '{"outer_dimension_partitions":["4"]}', True),
        ('{"known_trip_count":{"n":"5"}}', '{"known_trip_count":{"n":"6"}}', False),
        ('{"a":{"selected_algorithm":"7","beta":0}}', '{"a":{"beta":0}}', True),
        ('{"a":{"selected_algorithm":"7","beta":0}}', '{"a":{"beta":1}}', False),
        ('{"a":{"algorithm":{"algo_id":"3"}}}', '{"a":{"algorithm":{"algo_id":"4"}}}', True),
        ('{"a":{"algorithm":"ALG_UNSET"}}', '{"a":{"algorithm":"ALG_DOT_F32"}}', False),
        ('{"f":{"kind":"__triton"}}', '{"f":{"kind":"__cudnn"}}', False),
        ('{"x":[{"plan_id":"1"}]}', '{"x":[{"plan_id":"2"}]}', True),
    ],
)
def test_what_the_compiler_has_found(config: str, other: str, is_same: bool) -> None:
    texts = [compared(f"{FUSED}{each}, sharding={{replicated}}") for each in (config, other)]
    assert (texts[0] == texts[1]) == is_same
    assert texts[0].endswith(", sharding={replicated}")
    assert texts[0].startswith(FUSED)
