"""What is compared of a compiled program, and how many a process remembers."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from jaxnb.compat import jax_dispatch, xla
from jaxnb.compat.jax_compiling import has_lines_of
from jaxnb.compat.jax_programs import comparable, literals_digest
from jaxnb.lockstep.process_recorded import MAX_CHARS, MAX_PROGRAMS, MIN_PROGRAMS, Programs
from jaxnb.model.dispatches import ProgramLine

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


# ------------------------------------------------ constants, by the wire format of Protocol Buffers


def varint(number: int) -> bytes:
    found = b""
    while number > 0x7F:
        found += bytes([number & 0x7F | 0x80])
        number >>= 7
    return found + bytes([number])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def module(*literals: bytes, name: bytes = b"jit_f", others: bytes = b"") -> bytes:
    instructions = [
        field(2, field(1, b"constant.1") + others + field(8, each) + field(7, name))
        for each in literals
    ]
    return field(1, name) + field(3, field(1, b"main") + b"".join(instructions))


LARGE = bytes(1000)


def test_equal_constants_have_one_digest_whatever_is_beside_them() -> None:
    # A number, eight bytes and four bytes, which have no length.
    others = varint(35 << 3) + varint(1 << 40) + varint(51 << 3 | 1) + bytes(8)
    others += varint(60 << 3 | 5) + bytes(4)
    expected = literals_digest(module(LARGE, b"a"))
    assert literals_digest(module(LARGE, b"a", name=b"jit_g", others=others)) == expected


def test_other_constants_have_another() -> None:
    changed = LARGE[:500] + b"\x01" + LARGE[501:]
    made = [module(LARGE, b"a"), module(changed, b"a"), module(b"a", LARGE), module(LARGE)]
    assert len({literals_digest(each) for each in made}) == len(made)


def test_what_is_no_message_is_an_error() -> None:
    with pytest.raises(ValueError, match="wire type 3"):
        literals_digest(b"\x0b")


# ---------------------------------------------------------------------- how many are kept


@pytest.mark.parametrize(
    ("chars", "kept"),
    [(10, MAX_PROGRAMS), (MAX_CHARS // 8, 8), (MAX_CHARS, MIN_PROGRAMS)],
)
def test_few_are_kept_of_large_programs(
    monkeypatch: pytest.MonkeyPatch, chars: int, kept: int
) -> None:
    def lines(number: int) -> Callable[[], list[ProgramLine]]:
        return lambda: [ProgramLine(str(number))]

    monkeypatch.setattr(jax_dispatch, "executable_lines", lines)
    programs = Programs()
    for number in range(2 * MAX_PROGRAMS):
        programs.keep(number, number, "x" * chars, ["fact"])
        programs.keep(number, number, "x" * chars, ["fact"])  # compiled once more
    there = [number for number in range(2 * MAX_PROGRAMS) if programs.lines(number)]
    assert there == [*range(2 * MAX_PROGRAMS)][-kept:]
    assert programs.lines(there[-1]) == [ProgramLine("fact"), ProgramLine(str(there[-1]))]


def test_lines_that_only_the_first_compilation_had_are_nowhere() -> None:
    """A line that has become several is told no more, nor a cell of another session."""
    here, there = ("<cell 2>", 1, 0), ("<cell 5>", 4, 0)
    then, now = (there, there, here), (None, here, None)
    assert has_lines_of(SimpleNamespace(fingerprint="test"), then, now)
    assert xla.moved_places.pop("test") == {there: here, here: xla.NOWHERE}
