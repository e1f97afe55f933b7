import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisparse_agent.readers import nvml_fields as nf
from hisparse_agent.readers.nvml_fields import Answer, Code, Field, ValueType
from hisparse_agent.readings import Absence, Fabric, Missing, NvLink, Throttle

REFUSED = Answer(Code.NOT_SUPPORTED, error="Not Supported")
UNSUPPORTED = Missing(Absence.UNSUPPORTED, "NVML: Not Supported")
COUNTER = Answer(Code.SUCCESS, ValueType.UNSIGNED_LONG_LONG, 7)


@pytest.mark.parametrize("kind", [kind for kind in ValueType if kind is not ValueType.DOUBLE])
@given(value=st.integers(-(2**31), 2**64 - 1))
def test_an_integer_of_any_type_is_its_value(kind: ValueType, value: int) -> None:
    assert nf.number(Answer(Code.SUCCESS, kind, value)) == value


@pytest.mark.parametrize("kind", [ValueType.DOUBLE, 7, 255], ids=["not-filled", "unheard-of", "garbage"])
def test_success_without_an_integer_type_is_a_field_that_was_not_filled(kind: int) -> None:
    found = nf.number(Answer(Code.SUCCESS, kind, 0.0))
    assert isinstance(found, Missing)
    assert found.absence is Absence.UNKNOWN


@pytest.mark.parametrize(
    ("code", "absence"),
    [
        (Code.INVALID_ARGUMENT, Absence.UNSUPPORTED),
        (Code.NOT_SUPPORTED, Absence.UNSUPPORTED),
        (Code.FUNCTION_NOT_FOUND, Absence.UNSUPPORTED),
        (Code.VERSION_MISMATCH, Absence.UNSUPPORTED),
        (4, Absence.UNKNOWN),  # no permission
        (10, Absence.UNKNOWN),  # timeout
        (Code.UNKNOWN, Absence.UNKNOWN),
        (Code.LIBRARY_MISMATCH, Absence.UNKNOWN),
        (12345, Absence.UNKNOWN),
    ],
)
def test_only_what_is_not_there_is_unsupported(code: int, absence: Absence) -> None:
    assert nf.number(Answer(code, error="the text")) == Missing(absence, "NVML: the text")


def test_a_refused_value_is_not_looked_at() -> None:
    assert nf.number(Answer(Code.NOT_SUPPORTED, ValueType.UNSIGNED_INT, 57005, "Not Supported")) == UNSUPPORTED


@pytest.mark.parametrize(("value", "expected"), [(0, False), (1, True), (2, True), (UNSUPPORTED, UNSUPPORTED)])
def test_a_switch_is_on_when_it_is_not_0(value: int | Missing, expected: object) -> None:
    assert nf.switch(value) == expected


def answers(*whole: nf.ThrottleIds, **others: Answer) -> dict[int, Answer]:
    found = dict.fromkeys(nf.THROTTLE_PROBE, REFUSED)
    found |= {field: Answer(Code.SUCCESS, ValueType.UNSIGNED_LONG_LONG, field) for ids in whole for field in ids.all}
    return found | {int(name.removeprefix("f")): answer for name, answer in others.items()}


@pytest.mark.parametrize("ids", [nf.NEW_THROTTLE, nf.OLD_THROTTLE], ids=["new", "old"])
def test_the_set_that_answers_whole_is_chosen(ids: nf.ThrottleIds) -> None:
    assert nf.chosen_throttle(answers(ids)) == ids


@pytest.mark.parametrize(
    ("found", "absence"),
    [
        (answers(), Absence.UNSUPPORTED),
        (answers(nf.NEW_THROTTLE, nf.OLD_THROTTLE), Absence.UNSUPPORTED),
        (answers(nf.NEW_THROTTLE, f271=REFUSED), Absence.UNSUPPORTED),
        (answers(nf.OLD_THROTTLE, f251=Answer(Code.SUCCESS, ValueType.UNSIGNED_INT, 1)), Absence.UNSUPPORTED),
        (answers(nf.OLD_THROTTLE, f270=Answer(Code.UNKNOWN, error="Unknown Error")), Absence.UNKNOWN),
    ],
    ids=["neither", "both", "not-whole", "not-a-counter", "failed"],
)
def test_otherwise_none_is(found: dict[int, Answer], absence: Absence) -> None:
    ids = nf.chosen_throttle(found)
    assert isinstance(ids, Missing)
    assert ids.absence is absence


def test_throttle_times_are_read_by_the_chosen_ids() -> None:
    found = answers(nf.NEW_THROTTLE) | {Field.SW_POWER_CAP_TIME: COUNTER, Field.THERMAL_POLICY_TIME: COUNTER}
    assert nf.throttle(found, nf.NEW_THROTTLE, 0x40) == Throttle(7, 269, 270, 271, 0x40)


def test_without_them_the_thermal_policy_stands_in_for_sw_thermal() -> None:
    found = answers() | {Field.SW_POWER_CAP_TIME: REFUSED, Field.THERMAL_POLICY_TIME: COUNTER}
    untold = Missing(Absence.UNSUPPORTED, "for this test")
    assert nf.throttle(found, untold, UNSUPPORTED) == Throttle(UNSUPPORTED, 7, untold, untold, UNSUPPORTED)


def state(value: int) -> Answer:
    return Answer(Code.SUCCESS, ValueType.UNSIGNED_INT, value)


@pytest.mark.parametrize(
    ("states", "count"),
    [
        ([], 0),
        ([REFUSED] * 36, 0),
        ([state(1)] * 18 + [Answer(Code.INVALID_ARGUMENT)] * 18, 18),
        ([state(0)] * 18 + [REFUSED] * 18, 18),
        ([state(1)] * 36, 36),
        ([state(1), Answer(Code.UNKNOWN), state(1), REFUSED], 3),
    ],
    ids=["none", "hidden", "all-active", "all-inactive", "as-many-as-can-be", "one-failed"],
)
def test_links_end_where_the_state_is_refused(states: list[Answer], count: int) -> None:
    assert nf.count_links(states) == count


def test_the_speed_of_a_link_is_decimal_megabytes() -> None:
    assert nf.link(3, state(1), state(26562), [state(5), state(6), REFUSED]) == NvLink(
        3, 1, 26_562_000_000, replays=5, recoveries=6, crc_errors=UNSUPPORTED
    )


def test_an_inactive_link_tells_no_speed() -> None:
    assert nf.link(3, state(0), REFUSED, [COUNTER] * 3) == NvLink(3, 0, UNSUPPORTED, 7, 7, 7)


def test_nothing_in_the_mask_and_summary_of_the_fabric_is_none() -> None:
    assert nf.fabric(state=3, status=0, mask=0, summary=0) == Fabric(3, 0, None, None)
    assert nf.fabric(state=3, status=0, mask=0x1AA, summary=1) == Fabric(3, 0, 0x1AA, 1)
    assert nf.fabric(state=2, status=27, mask=0, summary=0) == Fabric(2, 27)


def test_a_fabric_of_state_0_is_none() -> None:
    found = nf.fabric(state=0, status=0, mask=0, summary=0)
    assert isinstance(found, Missing)
    assert found.absence is Absence.UNSUPPORTED


@pytest.mark.parametrize(
    ("nvml", "sysfs"),
    [
        ("00000000:1B:00.0", "0000:1b:00.0"),
        ("00000001:00:00.0", "0001:00:00.0"),
        ("00010000:E1:00.0", "10000:e1:00.0"),
        ("0000:1B:00.0", "0000:1b:00.0"),
    ],
)
def test_a_pci_address_is_spelled_as_in_sysfs(nvml: str, sysfs: str) -> None:
    assert nf.pci_address(nvml) == sysfs


@pytest.mark.parametrize(("version", "text"), [(13000, "13.0"), (13010, "13.1"), (12080, "12.8"), (0, "0.0")])
def test_cuda_version(version: int, text: str) -> None:
    assert nf.cuda_version(version) == text


def test_every_field_is_asked_once() -> None:
    asked = [*nf.FAST_FIELDS, *nf.SLOW_FIELDS, *nf.LINK_COUNTERS, Field.LINK_STATE, Field.LINK_SPEED, *nf.UNDECIDED]
    assert sorted(asked) == sorted({*Field, *nf.THROTTLE_PROBE})


@pytest.mark.parametrize(("code", "settled"), [(0, True), (3, True), (2, True), (999, False), (10, False)])
def test_what_failed_is_not_kept(code: int, settled: bool) -> None:
    assert nf.settled([COUNTER, Answer(code)]) is settled


def test_the_ids_are_those_of_the_bindings() -> None:
    pynvml = pytest.importorskip("pynvml")
    names = {
        Field.ECC_DOUBLE_BIT_VOLATILE: "ECC_DBE_VOL_TOTAL",
        Field.SW_POWER_CAP_TIME: "PERF_POLICY_POWER",
        Field.THERMAL_POLICY_TIME: "PERF_POLICY_THERMAL",
        Field.MEMORY_TEMPERATURE: "MEMORY_TEMP",
        Field.TOTAL_ENERGY: "TOTAL_ENERGY_CONSUMPTION",
        Field.PCIE_REPLAYS: "PCIE_REPLAY_COUNTER",
        Field.REMAP_PENDING: "REMAPPED_PENDING",
        Field.REMAP_FAILURE: "REMAPPED_FAILURE",
        Field.LINK_REPLAYS: "NVLINK_ERROR_DL_REPLAY",
        Field.LINK_RECOVERIES: "NVLINK_ERROR_DL_RECOVERY",
        Field.LINK_CRC_ERRORS: "NVLINK_ERROR_DL_CRC",
        Field.LINK_SPEED: "NVLINK_GET_SPEED",
        Field.LINK_STATE: "NVLINK_GET_STATE",
        Field.PCIE_CORRECTABLE: "PCIE_COUNT_CORRECTABLE_ERRORS",
        Field.PCIE_NONFATAL: "PCIE_COUNT_NON_FATAL_ERROR",
        Field.PCIE_FATAL: "PCIE_COUNT_FATAL_ERROR",
        Field.POWER_INSTANT: "POWER_INSTANT",
        Field.POWER_LEAST: "POWER_MIN_LIMIT",
        Field.POWER_MOST: "POWER_MAX_LIMIT",
        Field.POWER_DEFAULT: "POWER_DEFAULT_LIMIT",
        Field.POWER_ENFORCED: "POWER_CURRENT_LIMIT",
        Field.POWER_REQUESTED: "POWER_REQUESTED_LIMIT",
        Field.RECOVERY_ACTION: "GET_GPU_RECOVERY_ACTION",
    }
    assert set(names) == set(Field)
    for field, name in names.items():
        assert getattr(pynvml, f"NVML_FI_DEV_{name}") == field, name
    reasons = ("SW_THERM_SLOWDOWN", "HW_THERM_SLOWDOWN", "HW_POWER_BRAKE_SLOWDOWN")
    new = tuple(getattr(pynvml, f"NVML_FI_DEV_CLOCKS_EVENT_REASON_{name}") for name in reasons)
    assert new == nf.NEW_THROTTLE.all
    assert pynvml.NVML_NVLINK_MAX_LINKS <= nf.MOST_LINKS
    assert dict(nf.MEMBERS) == dict(enumerate(name for name, _ in pynvml.c_nvmlValue_t._fields_))


def test_the_return_codes_are_those_of_the_bindings() -> None:
    pynvml = pytest.importorskip("pynvml")
    names = {Code.LIBRARY_MISMATCH: "LIB_RM_VERSION_MISMATCH", Code.VERSION_MISMATCH: "ARGUMENT_VERSION_MISMATCH"}
    for code in Code:
        if code is not Code.SUCCESS:
            assert getattr(pynvml, f"NVML_ERROR_{names.get(code, code.name)}") == code
