"""Which version directories are served."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.config import VersionChoice, VersionPolicy, versions_to_load
from halimede.config.versions import MAX_VERSIONS
from halimede.errors import Invalid

ALL = VersionPolicy(VersionChoice.ALL)


def latest(count: int) -> VersionPolicy:
    return VersionPolicy(VersionChoice.LATEST, latest=count)


def specific(*versions: int) -> VersionPolicy:
    return VersionPolicy(VersionChoice.SPECIFIC, specific=versions)


@pytest.mark.parametrize(
    ("policy", "names", "versions"),
    [
        (latest(1), ["1", "2", "10"], [10]),
        (latest(2), ["1", "2", "10"], [2, 10]),
        (latest(9), ["3", "1"], [1, 3]),
        (ALL, ["10", "9", "0"], [0, 9, 10]),
        (specific(3, 1), ["1", "2", "3"], [1, 3]),
        (ALL, ["1", "warmup", "configs", "initial_state"], [1]),
        (ALL, ["1abc", "+5", " 7"], [1, 5, 7]),
        (ALL, ["9223372036854775807"], [9223372036854775807]),
    ],
)
def test_versions_are_chosen_without_a_warning(policy: VersionPolicy, names: list[str], versions: list[int]) -> None:
    assert versions_to_load(policy, names, "m") == (versions, [])


@pytest.mark.parametrize("name", ["foo", "", "v1", "-4", "9223372036854775808", "٣"])
def test_directory_that_is_no_number_is_ignored(name: str) -> None:
    assert versions_to_load(ALL, ["1", name], "m") == (
        [1],
        [f"ignore version directory '{name}' which fails to convert to integral number"],
    )


@pytest.mark.parametrize("name", ["01", "00", "0x1"])
def test_directory_with_a_leading_zero_is_ignored(name: str) -> None:
    assert versions_to_load(ALL, ["1", name], "m") == (
        [1],
        [f"ignore version directory '{name}' which contains leading zeros in its directory name"],
    )


def test_specific_version_that_is_missing_is_only_warned_of() -> None:
    assert versions_to_load(specific(1, 7), ["1", "2"], "m") == (
        [1],
        ["version 7 is specified for model 'm', but the version directory is not present"],
    )


@pytest.mark.parametrize(
    ("policy", "names"), [(latest(1), []), (latest(0), ["1"]), (specific(7), ["1"]), (ALL, ["foo"])]
)
def test_no_version_is_an_error(policy: VersionPolicy, names: list[str]) -> None:
    with pytest.raises(Invalid) as caught:
        versions_to_load(policy, names, "m")
    assert str(caught.value) == "at least one version must be available under the version policy of model 'm'"


@pytest.mark.parametrize(
    ("names", "advice"),
    [
        (["v1"], "rename 'v1' to '1': the names of version directories are numbers"),
        (["Version_2", "backup", "v-03"], "rename 'Version_2' to '2' and 'v-03' to '3': the names of version "
         "directories are numbers"),
        (["01"], "rename '01' to '1': the names of version directories are numbers"),
        (["backup", "model"], ""),
        (["warmup"], "make a directory '1' in the model's, with the model's files in it; that of an ensemble stays "
         "empty"),
    ],
)  # fmt: skip
def test_directories_that_are_meant_as_versions_are_named(names: list[str], advice: str) -> None:
    with pytest.raises(Invalid) as caught:
        versions_to_load(ALL, names, "m")
    assert caught.value.advice == advice


@given(names=st.lists(st.text()))
def test_any_other_names_neither_break_nor_become_versions_below_zero(names: list[str]) -> None:
    versions, _ = versions_to_load(ALL, [*names, "3"], "m")
    assert 3 in versions
    assert versions == sorted(set(versions))
    assert versions[0] >= 0


def test_versions_have_a_limit() -> None:
    names = [str(number) for number in range(1, MAX_VERSIONS + 2)]
    assert len(versions_to_load(ALL, names[:-1], "m")[0]) == MAX_VERSIONS
    with pytest.raises(Invalid, match="of model 'm' asks for 513 versions, and 512 are allowed"):
        versions_to_load(ALL, names, "m")
    assert versions_to_load(VersionPolicy(), names, "m")[0] == [MAX_VERSIONS + 1]
